"""Streams and events."""

import torch
from racing import READ_AFTER_WRITE, WRITE_AFTER_READ, WRITE_AFTER_WRITE, Programs, current, wait_until

PROGRAMS = Programs()
racing = PROGRAMS.racing


def new_stream(card=0):
    return torch.vdev.Stream(device=f"vdev:{card}")


@racing(READ_AFTER_WRITE, "wait_stream")
def side_stream_reads_too_early(repaired):
    side = new_stream()
    x = torch.ones(8, device="vdev")  # first
    if repaired:
        side.wait_stream(current())
    with torch.vdev.stream(side):
        x + 1  # second


@racing(READ_AFTER_WRITE, "wait_stream")
def current_stream_reads_the_result_too_early(repaired):
    side = new_stream()
    x = torch.ones(8, device="vdev")
    side.wait_stream(current())
    with torch.vdev.stream(side):
        y = x + 1  # first
    if repaired:
        current().wait_stream(side)
    y.sum()  # second


@racing(WRITE_AFTER_READ, "wait_stream")
def input_is_overwritten_while_a_side_stream_reads(repaired):
    side = new_stream()
    x = torch.ones(8, device="vdev")
    side.wait_stream(current())
    with torch.vdev.stream(side):
        x.sum()  # first
    if repaired:
        current().wait_stream(side)
    x.zero_()  # second


@racing(WRITE_AFTER_WRITE, "wait_stream")
def two_streams_write(repaired):
    one, other = new_stream(), new_stream()
    x = torch.empty(8, device="vdev")
    with torch.vdev.stream(one):
        x.fill_(1)  # first
    if repaired:
        other.wait_stream(one)
    with torch.vdev.stream(other):
        x.fill_(2)  # second


@racing(READ_AFTER_WRITE)
def event_is_recorded_before_the_work(repaired):
    side, event = new_stream(), torch.vdev.Event()
    x = torch.empty(8, device="vdev")
    if not repaired:
        event.record()
    x.fill_(1)  # first
    if repaired:
        event.record()
    side.wait_event(event)
    with torch.vdev.stream(side):
        x.sum()  # second


@racing(READ_AFTER_WRITE)
def event_is_recorded_on_the_wrong_stream(repaired):
    side, event = new_stream(), torch.vdev.Event()
    x = torch.empty(8, device="vdev")
    with torch.vdev.stream(side):
        x.fill_(1)  # first
    event.record(side if repaired else current())
    current().wait_event(event)
    x.sum()  # second


@racing(READ_AFTER_WRITE)
def event_was_never_recorded(repaired):
    side, event = new_stream(), torch.vdev.Event()
    x = torch.ones(8, device="vdev")  # first
    if repaired:
        event.record()
    side.wait_event(event)  # wait
    with torch.vdev.stream(side):
        x.sum()  # second


@racing(READ_AFTER_WRITE)
def event_was_recorded_again_for_earlier_work_only(repaired):
    side, event = new_stream(), torch.vdev.Event()
    x = torch.empty(8, device="vdev")
    event.record()
    x.fill_(1)
    event.record()
    x.fill_(2)  # first
    if repaired:
        event.record()
    side.wait_event(event)
    with torch.vdev.stream(side):
        x.sum()  # second


@racing(READ_AFTER_WRITE)
def wait_comes_before_the_record(repaired):
    side, event = new_stream(), torch.vdev.Event()
    x = torch.empty(8, device="vdev")
    if not repaired:
        side.wait_event(event)
    x.fill_(1)  # first
    event.record()
    if repaired:
        side.wait_event(event)
    with torch.vdev.stream(side):
        x.sum()  # second


@racing(READ_AFTER_WRITE)
def chain_over_three_streams_has_a_gap(repaired):
    one, two, three = new_stream(), new_stream(), new_stream()
    x = torch.empty(8, device="vdev")
    with torch.vdev.stream(one):
        x.fill_(1)  # first
    if repaired:
        two.wait_stream(one)
    three.wait_stream(two)
    with torch.vdev.stream(three):
        x.sum()  # second


@racing(READ_AFTER_WRITE)
def another_stream_waits(repaired):
    side, other = new_stream(), new_stream()
    x = torch.ones(8, device="vdev")  # first
    (side if repaired else other).wait_stream(current())
    with torch.vdev.stream(side):
        x.sum()  # second


@racing(READ_AFTER_WRITE)
def host_waits_for_the_wrong_stream(repaired):
    side, other = new_stream(), new_stream()
    x = torch.empty(8, device="vdev")
    with torch.vdev.stream(side):
        x.fill_(1)  # first
    (side if repaired else other).synchronize()
    x.sum()  # second


@racing(READ_AFTER_WRITE)
def another_card_is_synchronised(repaired):
    side = new_stream()
    x = torch.empty(8, device="vdev:0")
    torch.ones(8, device="vdev:1")
    with torch.vdev.stream(side):
        x.fill_(1)  # first
    torch.vdev.synchronize(0 if repaired else 1)
    x.sum()  # second


@racing(READ_AFTER_WRITE)
def host_waits_for_an_earlier_event(repaired):
    side, event = new_stream(), torch.vdev.Event()
    x = torch.empty(8, device="vdev")
    with torch.vdev.stream(side):
        event.record()
        x.fill_(1)  # first
        if repaired:
            event.record()
    event.synchronize()
    x.sum()  # second


@racing(READ_AFTER_WRITE)
def item_reads_on_the_current_stream(repaired):
    side = new_stream()
    x = torch.zeros((), device="vdev")
    side.wait_stream(current())
    with torch.vdev.stream(side):
        x.fill_(1)  # first
    if repaired:
        current().wait_stream(side)
    x.item()  # second


@racing(READ_AFTER_WRITE)
def item_of_another_tensor_waits_for_its_own_stream_only(repaired):
    side = new_stream()
    x, flag = torch.empty(8, device="vdev"), torch.ones((), device="vdev")
    with torch.vdev.stream(side):
        x.fill_(1)  # first
        if repaired:
            side.wait_stream(torch.vdev.default_stream())
            flag.item()
    flag.item()
    x.sum()  # second


@racing(WRITE_AFTER_READ)
def in_place_update_under_a_reader(repaired):
    side = new_stream()
    weight, batch = torch.ones(4, 4, device="vdev"), torch.ones(4, 4, device="vdev")
    side.wait_stream(current())
    with torch.vdev.stream(side):
        batch @ weight  # first
    if repaired:
        current().wait_stream(side)
    weight.add_(1)  # second


@racing(WRITE_AFTER_WRITE)
def out_argument_of_two_streams(repaired):
    side = new_stream()
    a, out = torch.ones(8, device="vdev"), torch.empty(8, device="vdev")
    side.wait_stream(current())
    with torch.vdev.stream(side):
        torch.add(a, 1, out=out)  # first
    if repaired:
        current().wait_stream(side)
    torch.add(a, 2, out=out)  # second


@racing(READ_AFTER_WRITE)
def foreach_on_a_side_stream(repaired):
    side = new_stream()
    parameters = [torch.ones(4, device="vdev") for _ in range(3)]
    side.wait_stream(current())
    with torch.vdev.stream(side):
        torch._foreach_mul_(parameters, 0.5)  # first
    if repaired:
        current().wait_stream(side)
    parameters[1].sum()  # second


@racing(WRITE_AFTER_READ)
def fused_optimizer_under_a_reader(repaired):
    side = new_stream()
    weight = torch.ones(4, device="vdev", requires_grad=True)
    weight.grad = torch.ones(4, device="vdev")
    optimizer = torch.optim.SGD([weight], lr=0.1)
    side.wait_stream(current())
    with torch.vdev.stream(side):
        weight.detach().sum()  # first
    if repaired:
        current().wait_stream(side)
    optimizer.step()  # second


@racing(READ_AFTER_WRITE)
def copy_between_cards_from_a_side_stream(repaired):
    side = new_stream()
    x = torch.zeros(8, device="vdev:0")
    side.wait_stream(current())
    with torch.vdev.stream(side):
        x.fill_(1)  # first
    if repaired:
        current().wait_stream(side)
    x.to("vdev:1")  # second


@racing(READ_AFTER_WRITE)
def copy_between_cards_orders_the_current_streams_only(repaired):
    there = new_stream(1)
    x = torch.ones(8, device="vdev:0")
    y = x.to("vdev:1", non_blocking=True)  # first
    if repaired:
        there.wait_stream(torch.vdev.current_stream(1))
    with torch.vdev.stream(there):
        y.sum()  # second


@racing(READ_AFTER_WRITE)
def query_is_not_asked(repaired):
    side, event = new_stream(), torch.vdev.Event()
    x = torch.empty(8, device="vdev")
    with torch.vdev.stream(side):
        x.fill_(1)  # first
        event.record()
    wait_until(lambda: not repaired or event.query())
    x.sum()  # second


@racing(WRITE_AFTER_READ)
def ring_of_buffers_is_one_too_short(repaired):
    side = new_stream()
    buffers = [torch.empty(8, device="vdev") for _ in range(2)]
    read = [torch.vdev.Event(), torch.vdev.Event()]
    for step in range(3):
        buffer = buffers[step % 2]
        if repaired:
            current().wait_event(read[step % 2])
        buffer.fill_(step)  # second
        side.wait_stream(current())
        with torch.vdev.stream(side):
            buffer.sum()  # first
            read[step % 2].record()


@racing(READ_AFTER_WRITE)
def priority_is_no_order(repaired):
    urgent = torch.vdev.Stream(priority=-1)
    x = torch.ones(8, device="vdev")
    urgent.wait_stream(current())
    with torch.vdev.stream(urgent):
        y = x * 2  # first
    if repaired:
        current().wait_stream(urgent)
    y + x  # second


@racing(READ_AFTER_WRITE)
def kernel_of_a_library(repaired):
    side = new_stream()
    x, y = torch.ones(8, device="vdev"), torch.empty(8, device="vdev")
    side.wait_stream(current())
    with torch.vdev.stream(side):
        from vccl import _C

        _C.launch_kernel("my_kernel", [x], [y], lambda: None)  # first
    if repaired:
        current().wait_stream(side)
    y.sum()  # second
