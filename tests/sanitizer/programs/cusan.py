"""The distinct cases of CuSan's test programs that need one process: implicit waits which do not exist.

In CUDA, a stream that was made without cudaStreamNonBlocking waits for the legacy default stream, and
cudaMemset, cudaMalloc and cudaMemcpy on it are barriers. Streams of torch are non-blocking, so each of these
"barriers" orders nothing. The programs are written anew, for torch's calls.
"""

import torch
from pairs import current, pinned, racing, side_stream, wait_without_order, zeros


@racing("read after write", r"must wait for|synchronize\(\)")
def the_default_stream_is_taken_for_a_barrier(repaired: bool) -> None:
    """An operator of the default stream between two streams' work. Legacy streams would be ordered by it."""
    x, dummy = zeros(), zeros()
    one, other = side_stream(), side_stream()
    with torch.vdev.stream(one):
        x.fill_(1)  # first
    if repaired:
        current().wait_stream(one)
    dummy.fill_(0)
    if repaired:
        other.wait_stream(current())
    with torch.vdev.stream(other):
        x.sum()  # second


@racing("read after write", r"must wait for|synchronize\(\)")
def the_default_stream_is_synchronised_for_a_side_stream(repaired: bool) -> None:
    x, host = zeros(), pinned()
    side = side_stream()
    with torch.vdev.stream(side):
        host.copy_(x, non_blocking=True)  # first
    zeros()
    torch.vdev.default_stream().synchronize()
    if repaired:
        side.synchronize()
    host.sum()  # second


@racing("read after write", r"must wait for|synchronize\(\)")
def a_side_stream_is_synchronised_for_the_default_stream(repaired: bool) -> None:
    x, dummy, host = zeros(), zeros(), pinned()
    side = side_stream()
    host.copy_(x, non_blocking=True)  # first
    if repaired:
        side.wait_stream(current())
    with torch.vdev.stream(side):
        dummy.fill_(1)
    side.synchronize()
    host.sum()  # second


@racing("read after write", r"must wait for|synchronize\(\)")
def an_allocation_is_taken_for_a_barrier(repaired: bool) -> None:
    """cudaMalloc may synchronise the device. The caching allocator does not call it mostly."""
    x, host = zeros(), pinned()
    one, other = side_stream(), side_stream()
    with torch.vdev.stream(one):
        x.fill_(1)  # first
    torch.empty(1 << 18, device="vdev")
    if repaired:
        other.wait_stream(one)
    with torch.vdev.stream(other):
        host.copy_(x, non_blocking=True)  # second
    other.synchronize()


@racing("read after write", r"must wait for|synchronize\(\)")
def a_copy_between_pageable_tensors_is_taken_for_a_barrier(repaired: bool) -> None:
    """cudaMemcpy from host to host synchronises. A copy between two CPU tensors has nothing to do with
    cards."""
    x, host = zeros(), pinned()
    here, there = torch.zeros(4), torch.ones(4)
    one, other = side_stream(), side_stream()
    with torch.vdev.stream(one):
        x.fill_(1)  # first
    here.copy_(there)
    if repaired:
        one.synchronize()
    with torch.vdev.stream(other):
        host.copy_(x, non_blocking=True)  # second
    other.synchronize()


@racing("read after write", r"must wait for|synchronize\(\)")
def a_blocking_copy_of_other_memory_is_taken_for_a_barrier(repaired: bool) -> None:
    """A blocking copy waits for the current stream, which is not the writer's."""
    x, y = zeros(), zeros()
    one, other = side_stream(), side_stream()
    with torch.vdev.stream(one):
        x.fill_(1)  # first
        if repaired:
            y.cpu()
    y.cpu()
    with torch.vdev.stream(other):
        x.sum()  # second


@racing("read after write", r"must wait for|synchronize\(\)")
def chunks_are_copied_on_streams_of_their_own(repaired: bool) -> None:
    """The host reads all chunks, and has waited for all streams but the last."""
    x, host = zeros(), pinned()
    streams = [side_stream() for _ in range(4)]
    for i, stream in enumerate(streams):
        with torch.vdev.stream(stream):
            host[64 * i : 64 * i + 64].copy_(x[64 * i : 64 * i + 64], non_blocking=True)  # first
    for stream in streams if repaired else streams[:3]:
        stream.synchronize()
    host.sum()  # second


@racing("read after write", r"must wait for|synchronize\(\)")
def the_second_half_of_a_buffer_is_still_written(repaired: bool) -> None:
    x = zeros()
    side = side_stream()
    with torch.vdev.stream(side):
        x[:128].fill_(1)
    side.synchronize()
    with torch.vdev.stream(side):
        x[128:].fill_(1)  # first
    (x[:128] if repaired else x).sum()  # second


@racing("read after write", r"must wait for|synchronize\(\)")
def padding_of_pitched_rows_is_read_too(repaired: bool) -> None:
    """Rows with a pitch: the writer fills the padding only, and the reader of the whole rows meets it."""
    rows = zeros(8, 64)
    with torch.vdev.stream(side_stream()):
        rows[:, 60:].fill_(1)  # first
    (rows[:, :60] if repaired else rows).sum()  # second


@racing("write after read", r"must wait for|synchronize\(\)")
def pointers_in_a_list_are_forgotten(repaired: bool) -> None:
    """A kernel that takes a struct of pointers reads all of them. Here, a list of tensors."""
    tensors = [zeros(16) for _ in range(3)]
    side = side_stream()
    with torch.vdev.stream(side):
        torch.cat(tensors)  # first
    if repaired:
        current().wait_stream(side)
    tensors[1].fill_(1)  # second


@racing("read after write", r"must wait for|synchronize\(\)")
def a_host_function_writes_what_the_host_reads(repaired: bool) -> None:
    """A host function runs in the order of its stream."""
    host, x, ran = pinned(), zeros(), []
    host.copy_(x, non_blocking=True)
    torch.accelerator.synchronize()

    def fill() -> None:
        host.fill_(1)  # first
        ran.append(True)

    side = side_stream()
    with torch.vdev.stream(side):
        torch.vdev._launch_host_func(fill)
    wait_without_order(ran)
    (side if repaired else current()).synchronize()
    host.sum()  # second


@racing("read after write", r"must wait for|synchronize\(\)")
def two_cards_are_synchronised_one_by_one_but_one(repaired: bool) -> None:
    x, y = zeros(), torch.zeros(256, device="vdev:1")
    sides = [side_stream(), torch.vdev.Stream(device=1)]
    sides[1].wait_stream(torch.vdev.current_stream(1))
    with torch.vdev.stream(sides[0]):
        x.add_(1)
    with torch.vdev.stream(sides[1]):
        y.add_(1)  # first
    torch.vdev.synchronize(1 if repaired else 0)
    y.sum()  # second
    torch.vdev.synchronize(0)


@racing("read after write", r"must wait for|synchronize\(\)")
def a_busy_loop_asks_the_wrong_stream(repaired: bool) -> None:
    x = zeros()
    side, idle = side_stream(), side_stream()
    with torch.vdev.stream(side):
        x.add_(1)  # first
    while not (side if repaired else idle).query():
        pass
    x.sum()  # second
