"""Messages between ranks: buffers that are overwritten or read before the message is over."""

import torch
import torch.distributed as dist
from pairs import current, pinned, racing, side_stream, zeros

WAIT = r"wait\(\)|must wait for"


def peer() -> int:
    return 1 - dist.get_rank()


@racing("write after read", WAIT, ranks=2, on=(0,))
def the_buffer_of_isend_is_overwritten(repaired: bool) -> None:
    x = zeros()
    if dist.get_rank() == 1:
        dist.recv(x, 0)
        return
    work = dist.isend(x, 1)  # first
    if repaired:
        work.wait()
    x.fill_(2)  # second
    work.wait()


@racing("write after read", WAIT, ranks=2, on=(0,))
def the_future_of_isend_is_not_waited_for(repaired: bool) -> None:
    x = zeros()
    if dist.get_rank() == 1:
        dist.recv(x, 0)
        return
    future = dist.isend(x, 1).get_future()  # first
    if repaired:
        future.wait()
    x.fill_(2)  # second
    future.wait()


@racing("read after write", WAIT, ranks=2, on=(1,))
def the_buffer_of_irecv_is_read(repaired: bool) -> None:
    x = zeros()
    if dist.get_rank() == 0:
        dist.send(x, 1)
        return
    work = dist.irecv(x, 0)  # first
    if repaired:
        work.wait()
    x.sum()  # second
    work.wait()


@racing("write after write", WAIT, ranks=2, on=(1,))
def the_buffer_of_irecv_is_zeroed(repaired: bool) -> None:
    x = zeros()
    if dist.get_rank() == 0:
        dist.send(x, 1)
        return
    work = dist.irecv(x, 0)  # first
    if repaired:
        work.wait()
    x.zero_()  # second
    work.wait()


@racing("read after write", WAIT, ranks=2)
def a_batch_of_messages_is_read_too_early(repaired: bool) -> None:
    out, back = zeros(), zeros()
    messages = [dist.P2POp(dist.isend, out, peer()), dist.P2POp(dist.irecv, back, peer())]
    works = dist.batch_isend_irecv(messages)  # first
    if repaired:
        for work in works:
            work.wait()
    back.sum()  # second
    for work in works:
        work.wait()


@racing("write after read", WAIT, ranks=2)
def the_outgoing_half_of_a_batch_is_overwritten(repaired: bool) -> None:
    out, back = zeros(), zeros()
    messages = [dist.P2POp(dist.isend, out, peer()), dist.P2POp(dist.irecv, back, peer())]
    works = dist.batch_isend_irecv(messages)  # first
    if repaired:
        for work in works:
            work.wait()
    out.fill_(1)  # second
    for work in works:
        work.wait()


@racing("read after write", r"wait_stream|must wait for", ranks=2, on=(0,))
def a_message_is_sent_before_a_side_stream_has_written_it(repaired: bool) -> None:
    x = zeros()
    if dist.get_rank() == 1:
        dist.recv(x, 0)
        return
    side = side_stream()
    with torch.vdev.stream(side):
        x.fill_(1)  # first
    if repaired:
        current().wait_stream(side)
    dist.send(x, 1)  # second


@racing("read after write", WAIT, ranks=2, on=(1,))
def the_wrong_one_of_two_receives_is_waited_for(repaired: bool) -> None:
    """Messages of two groups have no order."""
    group = dist.new_group([0, 1])
    x, y = zeros(), zeros(8)
    if dist.get_rank() == 0:
        works = [dist.isend(x, 1), dist.isend(y, 1, group=group)]
    else:
        works = [dist.irecv(x, 0)]  # first
        works.append(dist.irecv(y, 0, group=group))
        works[0 if repaired else 1].wait()
        x.sum()  # second
    for work in works:
        work.wait()
    torch.accelerator.synchronize()
    dist.destroy_process_group(group)


@racing("read after write", WAIT, ranks=2, on=(1,))
def a_part_of_a_receive_is_read(repaired: bool) -> None:
    """The message fills the first half. In the repaired form, the second half is read."""
    x = zeros()
    if dist.get_rank() == 0:
        dist.send(x[:128], 1)
        return
    work = dist.irecv(x[:128], 0)  # first
    (x[128:] if repaired else x[127:]).sum()  # second
    work.wait()


@racing("read after write", WAIT, ranks=2, on=(1,))
def a_cpu_tensor_is_read_while_it_is_received(repaired: bool) -> None:
    x = torch.zeros(64)
    if dist.get_rank() == 0:
        dist.send(x, 1)
        return
    work = dist.irecv(x, 0)  # first
    if repaired:
        work.wait()
    x.sum()  # second
    work.wait()


@racing("write after read", WAIT, ranks=2, on=(0,))
def a_cpu_tensor_is_overwritten_while_it_is_sent(repaired: bool) -> None:
    x = torch.zeros(64)
    if dist.get_rank() == 1:
        dist.recv(x, 0)
        return
    work = dist.isend(x, 1)  # first
    if repaired:
        work.wait()
    x.fill_(1)  # second
    work.wait()


@racing("read after write", r"the host must wait for|synchronize\(\)", ranks=2, on=(0,))
def a_staged_message_is_sent_before_the_copy_is_over(repaired: bool) -> None:
    """The CPU's message reads pinned memory at once, and the copy into it is not blocking."""
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(256), 0)
        return
    x, host = zeros(), pinned()
    host.copy_(x, non_blocking=True)  # first
    if repaired:
        current().synchronize()
    dist.send(host, 1)  # second
    current().synchronize()


@racing("read after write", r"wait_stream|wait\(\)|must wait for", ranks=2, on=(1,))
def another_stream_waits_for_a_receive(repaired: bool) -> None:
    x = zeros()
    if dist.get_rank() == 0:
        dist.send(x, 1)
        return
    side = side_stream()
    work = dist.irecv(x, 0)  # first
    with torch.vdev.stream(current() if repaired else side):
        work.wait()
    x.sum()  # second
