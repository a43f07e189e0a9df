"""Collectives and messages. The programs run on two ranks, each of which must find the race."""

import torch
import torch.distributed as dist
from racing import READ_AFTER_WRITE, WRITE_AFTER_READ, WRITE_AFTER_WRITE, Programs, current

PROGRAMS = Programs()
racing = PROGRAMS.racing


def card():
    return torch.device("vdev", torch.vdev.current_device())


def tensor(count=8):
    return torch.ones(count, device=card())


@racing(READ_AFTER_WRITE, "wait() of its Work")
def all_reduce_is_not_waited_for(repaired):
    x = tensor()
    work = dist.all_reduce(x, async_op=True)  # first
    if repaired:
        work.wait()
    x.sum()  # second
    work.wait()


@racing(WRITE_AFTER_WRITE, "wait() of its Work")
def all_reduce_is_overwritten(repaired):
    x = tensor()
    work = dist.all_reduce(x, async_op=True)  # first
    if repaired:
        work.wait()
    x.zero_()  # second
    work.wait()


@racing(WRITE_AFTER_READ, "wait() of its Work")
def input_of_all_gather_is_overwritten(repaired):
    x, out = tensor(), tensor(16)
    work = dist.all_gather_into_tensor(out, x, async_op=True)  # first
    if repaired:
        work.wait()
    x.add_(1)  # second
    work.wait()


@racing(READ_AFTER_WRITE)
def output_of_all_gather_is_read(repaired):
    x, outs = tensor(), [tensor(), tensor()]
    work = dist.all_gather(outs, x, async_op=True)  # first
    if repaired:
        work.wait()
    outs[1].sum()  # second
    work.wait()


@racing(WRITE_AFTER_READ)
def input_of_reduce_scatter_is_overwritten(repaired):
    x, out = tensor(16), tensor()
    work = dist.reduce_scatter_tensor(out, x, async_op=True)  # first
    if repaired:
        work.wait()
    x.zero_()  # second
    work.wait()


@racing(READ_AFTER_WRITE)
def output_of_all_to_all_is_read(repaired):
    x, out = tensor(), tensor()
    work = dist.all_to_all_single(out, x, async_op=True)  # first
    if repaired:
        work.wait()
    out.sum()  # second
    work.wait()


@racing(READ_AFTER_WRITE)
def wait_is_on_another_stream(repaired):
    x, side = tensor(), torch.vdev.Stream()
    work = dist.all_reduce(x, async_op=True)  # first
    with torch.vdev.stream(side):
        work.wait()
    if repaired:
        current().wait_stream(side)
    x.sum()  # second
    work.wait()


@racing(READ_AFTER_WRITE, "wait_stream")
def collective_reads_what_a_side_stream_writes(repaired):
    x, side = tensor(), torch.vdev.Stream()
    side.wait_stream(current())
    with torch.vdev.stream(side):
        y = x * 2  # first
    if repaired:
        current().wait_stream(side)
    out = tensor(16)
    dist.all_gather_into_tensor(out, y)  # second


@racing(READ_AFTER_WRITE)
def synchronous_collective_is_on_the_current_stream_only(repaired):
    x, side = tensor(), torch.vdev.Stream()
    side.wait_stream(current())
    dist.all_reduce(x)  # first
    if repaired:
        side.wait_stream(current())
    with torch.vdev.stream(side):
        x.sum()  # second


@racing(WRITE_AFTER_READ)
def future_is_not_waited_for(repaired):
    x, out = tensor(), tensor(16)
    future = dist.all_gather_into_tensor(out, x, async_op=True).get_future()  # first
    if repaired:
        future.wait()
    x.zero_()  # second
    future.wait()


@racing(READ_AFTER_WRITE, "wait() of its Work")
def collective_on_the_host_is_not_waited_for(repaired):
    x = torch.ones(8)
    work = dist.all_reduce(x, async_op=True)  # first
    if repaired:
        work.wait()
    x.sum()  # second
    work.wait()


@racing(WRITE_AFTER_WRITE)
def two_groups_have_no_order(repaired):
    x, other = tensor(), dist.new_group()
    work = dist.all_reduce(x, async_op=True)  # first
    if repaired:
        work.wait()
    dist.all_reduce(x, group=other)  # second
    work.wait()
    dist.destroy_process_group(other)


def peer():
    return 1 - dist.get_rank()


@racing(WRITE_AFTER_READ, "wait() of its Work")
def sent_buffer_is_overwritten(repaired):
    x, out = tensor(), tensor()
    sending = dist.isend(x, peer())  # first
    receiving = dist.irecv(out, peer())
    if repaired:
        sending.wait()
    x.zero_()  # second
    sending.wait()
    receiving.wait()


@racing(READ_AFTER_WRITE, "wait() of its Work")
def received_buffer_is_read(repaired):
    x, out = tensor(), tensor()
    receiving = dist.irecv(out, peer())  # first
    sending = dist.isend(x, peer())
    if repaired:
        receiving.wait()
    out.sum()  # second
    sending.wait()
    receiving.wait()


@racing(READ_AFTER_WRITE)
def batch_of_messages_is_not_waited_for(repaired):
    x, out = tensor(), tensor()
    messages = [dist.P2POp(dist.isend, x, peer()), dist.P2POp(dist.irecv, out, peer())]
    works = dist.batch_isend_irecv(messages)  # first
    if repaired:
        for work in works:
            work.wait()
    out.sum()  # second
    for work in works:
        work.wait()


@racing(READ_AFTER_WRITE)
def message_of_the_host_is_read(repaired):
    x, out = torch.ones(8), torch.zeros(8)
    receiving = dist.irecv(out, peer())  # first
    sending = dist.isend(x, peer())
    if repaired:
        receiving.wait()
    out.sum()  # second
    sending.wait()
    receiving.wait()
