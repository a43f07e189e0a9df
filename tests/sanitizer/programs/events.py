"""Events: recorded too early, too late, never, again, or waited for by the wrong side."""

import torch
from pairs import current, pinned, racing, side_stream, zeros


@racing("read after write", r"wait_stream")
def the_event_is_recorded_too_early(repaired: bool) -> None:
    x = zeros()
    side = side_stream()
    with torch.vdev.stream(side):
        early = side.record_event()
        x.add_(1)  # first
        late = side.record_event()
    current().wait_event(late if repaired else early)
    x.sum()  # second


@racing("read after write", r"wait_stream")
def the_event_is_never_recorded(repaired: bool) -> None:
    """A wait for an event that was never recorded orders nothing."""
    x = zeros()
    side, event = side_stream(), torch.vdev.Event()
    with torch.vdev.stream(side):
        x.add_(1)  # first
    if repaired:
        event.record(side)
    current().wait_event(event)  # wait
    x.sum()  # second


@racing("read after write", r"wait_stream")
def the_event_is_recorded_on_the_wrong_stream(repaired: bool) -> None:
    """record() without a stream records the current one, which is not the side stream any more."""
    x = zeros()
    side, event = side_stream(), torch.vdev.Event()
    with torch.vdev.stream(side):
        x.add_(1)  # first
    if repaired:
        event.record(side)
    else:
        event.record()
    current().wait_event(event)
    x.sum()  # second


@racing("read after write", r"wait_stream")
def the_wrong_stream_waits_for_the_event(repaired: bool) -> None:
    x = zeros()
    side, other = side_stream(), side_stream()
    with torch.vdev.stream(side):
        x.add_(1)  # first
    event = side.record_event()
    (current() if repaired else other).wait_event(event)
    x.sum()  # second


@racing("read after write", r"wait_stream")
def the_event_is_recorded_again_after_the_wait(repaired: bool) -> None:
    """A wait is for the last recording at the time of the wait, whatever comes later."""
    x = zeros()
    side, event = side_stream(), torch.vdev.Event()
    event.record(side)
    if not repaired:
        current().wait_event(event)
    with torch.vdev.stream(side):
        x.add_(1)  # first
    event.record(side)
    if repaired:
        current().wait_event(event)
    x.sum()  # second


@racing("read after write", r"wait_stream")
def the_event_is_recorded_again_on_another_stream(repaired: bool) -> None:
    """The second recording replaces the first: nobody waits for the writer any more."""
    x = zeros()
    writer, other, event = side_stream(), side_stream(), torch.vdev.Event()
    with torch.vdev.stream(writer):
        x.add_(1)  # first
    event.record(writer)
    if not repaired:
        event.record(other)
    current().wait_event(event)
    x.sum()  # second


@racing("read after write", r"wait_stream")
def work_is_added_after_the_event(repaired: bool) -> None:
    x, y = zeros(), zeros()
    side = side_stream()
    with torch.vdev.stream(side):
        x.add_(1)
        event = side.record_event()
        y.add_(1)  # first
        if repaired:
            event.record(side)
    current().wait_event(event)
    x.sum()
    y.sum()  # second


@racing("write after read", r"wait_stream")
def an_event_orders_only_one_direction(repaired: bool) -> None:
    """The consumer waits for the producer, and the producer overwrites without waiting for the consumer."""
    buffer = zeros()
    producer, consumer = side_stream(), side_stream()
    with torch.vdev.stream(producer):
        buffer.fill_(1)
    full = producer.record_event()
    consumer.wait_event(full)
    with torch.vdev.stream(consumer):
        buffer.sum()  # first
    empty = consumer.record_event()
    if repaired:
        producer.wait_event(empty)
    with torch.vdev.stream(producer):
        buffer.fill_(2)  # second


@racing("read after write", r"wait_stream")
def the_events_of_a_ring_are_mixed_up(repaired: bool) -> None:
    buffers, events = [zeros() for _ in range(3)], []
    side = side_stream()
    for buffer in buffers[:2]:
        with torch.vdev.stream(side):
            buffer.add_(1)
        events.append(side.record_event())
    with torch.vdev.stream(side):
        buffers[2].add_(1)  # first
    events.append(side.record_event())
    current().wait_event(events[2 if repaired else 1])
    buffers[2].sum()  # second


@racing("read after write", r"synchronize\(\)|wait_stream")
def a_query_that_said_no_is_taken_for_a_wait(repaired: bool) -> None:
    x = zeros()
    side, event = side_stream(), torch.vdev.Event()
    with torch.vdev.stream(side):
        torch.vdev._sleep(1000)
        x.add_(1)  # first
        event.record()
    while repaired and not event.query():
        pass
    x.sum()  # second


@racing("read after write", r"wait_stream")
def the_wrong_event_is_synchronised(repaired: bool) -> None:
    x = zeros()
    side, other = side_stream(), side_stream()
    with torch.vdev.stream(side):
        x.add_(1)  # first
    event, wrong = side.record_event(), other.record_event()
    (event if repaired else wrong).synchronize()
    x.sum()  # second


@racing("read after write", r"synchronize\(\)")
def the_host_reads_before_the_event_is_synchronised(repaired: bool) -> None:
    x, host = zeros(), pinned()
    host.copy_(x, non_blocking=True)  # first
    event = current().record_event()
    if repaired:
        event.synchronize()
    host.sum()  # second
    event.synchronize()


@racing("read after write", r"wait_stream")
def an_event_of_another_card_is_waited_for(repaired: bool) -> None:
    """The events of both cards exist; the reader waits for the one of its own card."""
    x, y = zeros(), torch.zeros(256, device="vdev:1")
    side = side_stream()
    far = torch.vdev.Stream(device=1)
    far.wait_stream(torch.vdev.current_stream(1))
    with torch.vdev.stream(side):
        x.add_(1)  # first
    with torch.vdev.stream(far):
        y.add_(1)
    events = {0: side.record_event(), 1: far.record_event()}
    current().wait_event(events[0 if repaired else 1])
    x.sum()  # second


@racing("read after write", r"wait_stream")
def a_transitive_wait_over_events_misses_a_link(repaired: bool) -> None:
    x = zeros()
    a, b, c = side_stream(), side_stream(), side_stream()
    with torch.vdev.stream(a):
        x.add_(1)  # first
    of_a, of_b = torch.vdev.Event(), torch.vdev.Event()
    if repaired:
        of_a.record(a)
    b.wait_event(of_a)  # wait
    of_b.record(b)
    c.wait_event(of_b)
    with torch.vdev.stream(c):
        x.sum()  # second


@racing("read after write", r"wait_stream")
def the_timing_events_are_taken_for_an_order(repaired: bool) -> None:
    x = zeros()
    side = side_stream()
    start, end = torch.vdev.Event(enable_timing=True), torch.vdev.Event(enable_timing=True)
    with torch.vdev.stream(side):
        start.record()
        x.add_(1)  # first
        end.record()
    (end if repaired else start).synchronize()
    x.sum()  # second
