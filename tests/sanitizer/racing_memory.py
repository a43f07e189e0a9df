"""The host's side of copies, and memory that is freed and given out again."""

import torch
from racing import READ_AFTER_WRITE, USE_AFTER_FREE, WRITE_AFTER_READ, WRITE_AFTER_WRITE, Programs, current

PROGRAMS = Programs()
racing = PROGRAMS.racing


def pinned(values=4):
    return torch.zeros(values, pin_memory=True)


@racing(READ_AFTER_WRITE, "synchronize()")
def pinned_result_is_read_too_early(repaired):
    x, host = torch.ones(4, device="vdev"), pinned()
    host.copy_(x, non_blocking=True)  # first
    if repaired:
        current().synchronize()
    host.sum()  # second


@racing(READ_AFTER_WRITE, "synchronize()")
def result_of_to_cpu_is_read_too_early(repaired):
    x = torch.ones(4, device="vdev")
    host = x.to("cpu", non_blocking=True)  # first
    if repaired:
        torch.accelerator.synchronize()
    host.tolist()  # second


@racing(READ_AFTER_WRITE)
def pageable_result_is_read_too_early(repaired):
    x, host = torch.ones(4, device="vdev"), torch.zeros(4)
    host.copy_(x, non_blocking=True)  # first
    if repaired:
        current().synchronize()
    host.add(1)  # second


@racing(WRITE_AFTER_READ)
def pinned_buffer_is_filled_again(repaired):
    x, host = torch.empty(4, device="vdev"), pinned()
    x.copy_(host, non_blocking=True)  # first
    if repaired:
        current().synchronize()
    host.fill_(1)  # second


@racing(WRITE_AFTER_READ)
def staging_buffer_of_a_loop(repaired):
    x, host, done = torch.empty(4, device="vdev"), pinned(), torch.vdev.Event()
    for step in range(2):
        if repaired:
            done.synchronize()
        host.fill_(step)  # second
        x.copy_(host, non_blocking=True)  # first
        done.record()


@racing(READ_AFTER_WRITE)
def numpy_is_taken_too_early(repaired):
    x = torch.ones(4, device="vdev")
    host = x.to("cpu", non_blocking=True)  # first
    if repaired:
        current().synchronize()
    host.numpy()  # second


@racing(READ_AFTER_WRITE)
def element_of_a_result(repaired):
    x = torch.ones(4, device="vdev")
    host = x.to("cpu", non_blocking=True)  # first
    if repaired:
        current().synchronize()
    host[2].item()  # second


@racing(WRITE_AFTER_WRITE)
def host_writes_where_a_copy_writes(repaired):
    x, host = torch.ones(4, device="vdev"), pinned()
    host.copy_(x, non_blocking=True)  # first
    if repaired:
        current().synchronize()
    host.zero_()  # second


@racing(READ_AFTER_WRITE)
def other_half_of_a_pinned_buffer(repaired):
    x, host = torch.ones(4, device="vdev"), pinned(8)
    host[:4].copy_(x, non_blocking=True)  # first
    host[4 if repaired else 3 :].sum()  # second


@racing(READ_AFTER_WRITE)
def two_copies_of_one_buffer(repaired):
    side = torch.vdev.Stream()
    x, y, host = torch.ones(4, device="vdev"), torch.empty(4, device="vdev"), pinned()
    side.wait_stream(current())
    host.copy_(x, non_blocking=True)  # first
    if repaired:
        side.wait_stream(current())
    with torch.vdev.stream(side):
        y.copy_(host, non_blocking=True)  # second


@racing(READ_AFTER_WRITE)
def prefetched_batch_is_read_too_early(repaired):
    side, host = torch.vdev.Stream(), pinned()
    with torch.vdev.stream(side):
        batch = host.to("vdev", non_blocking=True)  # first
    if repaired:
        current().wait_stream(side)
    batch.sum()  # second


@racing(READ_AFTER_WRITE)
def scalar_from_the_host(repaired):
    x = torch.ones((), device="vdev")
    host = x.to("cpu", non_blocking=True)  # first
    if repaired:
        current().synchronize()
    torch.ones(4, device="vdev") * host  # second


@racing(USE_AFTER_FREE, "record_stream")
def memory_is_given_out_again(repaired):
    side = torch.vdev.Stream()
    x = torch.ones(1 << 20, device="vdev")
    side.wait_stream(current())
    with torch.vdev.stream(side):
        x.sum()  # first
    if repaired:
        x.record_stream(side)
    del x
    torch.zeros(1 << 20, device="vdev")  # second


@racing(USE_AFTER_FREE, "record_stream")
def memory_of_a_side_stream_is_given_out_again(repaired):
    side = torch.vdev.Stream()
    with torch.vdev.stream(side):
        x = torch.ones(1 << 20, device="vdev")
    current().wait_stream(side)
    x.sum()  # first
    if repaired:
        x.record_stream(current())
    del x
    with torch.vdev.stream(side):
        torch.zeros(1 << 20, device="vdev")  # second
