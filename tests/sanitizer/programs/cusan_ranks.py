"""The distinct cases of CuSan's test programs for two ranks, with MPI's calls as those of torch.distributed.

MPI knows no streams, so the host has to wait before it sends. A message of torch.distributed comes after the
stream that is current at its call, so the races here are with other streams, and with the host.
"""

import torch
import torch.distributed as dist
from newer_names import all_gather_single
from pairs import current, pinned, racing, side_stream, zeros

SOME_WAIT = r"must wait for|wait_stream|wait\(\)|synchronize\(\)"


@racing("read after write", SOME_WAIT, ranks=2, on=(0,))
def a_kernel_of_a_stream_is_sent(repaired: bool) -> None:
    x = zeros()
    if dist.get_rank() == 1:
        dist.recv(x, 0)
        return
    side = side_stream()
    with torch.vdev.stream(side):
        torch.arange(256, out=x)  # first
    if repaired:
        side.synchronize()
    dist.send(x, 1)  # second


@racing("read after write", SOME_WAIT, ranks=2, on=(0,))
def a_kernel_is_sent_after_the_wrong_event(repaired: bool) -> None:
    x = zeros()
    if dist.get_rank() == 1:
        dist.recv(x, 0)
        return
    side = side_stream()
    before = side.record_event()
    with torch.vdev.stream(side):
        x.fill_(1)  # first
    after = side.record_event()
    (after if repaired else before).synchronize()
    dist.send(x, 1)  # second


@racing("write after read", SOME_WAIT, ranks=2, on=(1,))
def a_kernel_reads_the_buffer_of_a_receive(repaired: bool) -> None:
    x = zeros()
    if dist.get_rank() == 0:
        dist.send(x, 1)
        return
    side = side_stream()
    with torch.vdev.stream(side):
        x.sum()  # first
    if repaired:
        side.synchronize()
    dist.recv(x, 0)  # second


@racing("read after write", SOME_WAIT, ranks=2, on=(1,))
def a_kernel_of_a_stream_reads_what_was_received(repaired: bool) -> None:
    x = zeros()
    if dist.get_rank() == 0:
        dist.send(x, 1)
        return
    side = side_stream()
    dist.recv(x, 0)  # first
    if repaired:
        side.wait_stream(current())
    with torch.vdev.stream(side):
        x.sum()  # second


@racing("read after write", SOME_WAIT, ranks=2, on=(0,))
def a_copy_of_a_stream_is_sent(repaired: bool) -> None:
    x, y = zeros(), zeros()
    if dist.get_rank() == 1:
        dist.recv(y, 0)
        return
    side = side_stream()
    with torch.vdev.stream(side):
        y.copy_(x)  # first
    if repaired:
        torch.accelerator.synchronize()
    dist.send(y, 1)  # second


@racing("read after write", SOME_WAIT, ranks=2, on=(0,))
def only_the_half_that_is_ready_may_be_sent(repaired: bool) -> None:
    """The first half is written and waited for. The racing form sends one element more."""
    x = zeros()
    count = 128 if repaired else 129
    if dist.get_rank() == 1:
        dist.recv(x[:count], 0)
        return
    side = side_stream()
    with torch.vdev.stream(side):
        x[:128].fill_(1)
        side.synchronize()
        x[128:].fill_(1)  # first
    dist.send(x[:count], 1)  # second


@racing("read after write", SOME_WAIT, ranks=2, on=(0,))
def a_query_of_another_event_is_taken_for_the_kernels(repaired: bool) -> None:
    x = zeros()
    if dist.get_rank() == 1:
        dist.recv(x, 0)
        return
    side = side_stream()
    idle = side.record_event()
    with torch.vdev.stream(side):
        x.fill_(1)  # first
    done = side.record_event()
    while not (done if repaired else idle).query():
        pass
    dist.send(x, 1)  # second


@racing("read after write", SOME_WAIT, ranks=2, on=(0,))
def one_of_the_buffers_of_a_batch_is_not_ready(repaired: bool) -> None:
    buffers = [zeros(16) for _ in range(3)]
    send = dist.get_rank() == 0
    side = side_stream()
    if send:
        with torch.vdev.stream(side):
            buffers[1].fill_(1)  # first
        if repaired:
            current().wait_stream(side)
    call = dist.isend if send else dist.irecv
    messages = [dist.P2POp(call, buffer, 1 if send else 0) for buffer in buffers]
    works = dist.batch_isend_irecv(messages)  # second
    for work in works:
        work.wait()


@racing("read after write", SOME_WAIT, ranks=2, on=(0,))
def chunks_are_sent_from_the_host_while_they_are_copied(repaired: bool) -> None:
    """Chunks are downloaded on two streams. The second is sent when the first has been waited for."""
    if dist.get_rank() == 1:
        for _ in range(2):
            dist.recv(torch.zeros(128), 0)
        return
    x, host = zeros(), pinned()
    streams = [side_stream(), side_stream()]
    with torch.vdev.stream(streams[0]):
        host[:128].copy_(x[:128], non_blocking=True)
    with torch.vdev.stream(streams[1]):
        host[128:].copy_(x[128:], non_blocking=True)  # first
    streams[0].synchronize()
    dist.send(host[:128], 1)
    if repaired:
        streams[1].synchronize()
    dist.send(host[128:], 1)  # second
    streams[1].synchronize()


@racing("write after read", SOME_WAIT, ranks=2)
def a_halo_is_received_while_the_stencil_reads_it(repaired: bool) -> None:
    """A Jacobi solver: the kernel of the rows reads the halo, into which the next exchange writes."""
    rows, peer = zeros(10, 16), 1 - dist.get_rank()
    stencil = side_stream()
    with torch.vdev.stream(stencil):
        torch.add(rows[:-2], rows[2:])  # first
    if repaired:
        current().wait_stream(stencil)
    halo, edge = (rows[9], rows[8]) if dist.get_rank() == 0 else (rows[0], rows[1])
    messages = [dist.P2POp(dist.isend, edge, peer), dist.P2POp(dist.irecv, halo, peer)]
    works = dist.batch_isend_irecv(messages)  # second
    for work in works:
        work.wait()


@racing("read after write", SOME_WAIT, ranks=2)
def a_norm_is_summed_while_a_stream_computes_it(repaired: bool) -> None:
    x, norm = zeros(), zeros(1)
    side = side_stream()
    with torch.vdev.stream(side):
        torch.sum(x, dim=0, keepdim=True, out=norm)  # first
    if repaired:
        current().wait_stream(side)
    all_gather_single(zeros(2), norm)  # second
