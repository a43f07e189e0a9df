"""Classic bugs of programs for asynchronous devices: each gives the wrong values that it gives on a GPU, and
its repair never does.

A scene plays one bug, or its repaired form, and returns what the program read. The bug is played once, on
streams that are held until the end of the scene, so that it does not depend on time. The repaired form is
played often, on streams that are late by random times.
"""

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch

pytestmark = pytest.mark.asynchronous

# Continuous integration plays fewer rounds than the 10,000 that VCCL_TEST_ROUNDS asks for.
ROUNDS = int(os.environ.get("VCCL_TEST_ROUNDS", "500"))
SIZE = 64
OLD, NEW, NEWER = [1.0] * SIZE, [2.0] * SIZE, [3.0] * SIZE


@dataclass
class Scene:
    """How a scene is played. `late(stream)` holds a stream back inside a `with` block."""

    repaired: bool
    late: Callable[[torch.Stream], contextlib.AbstractContextManager]
    other_thread: ThreadPoolExecutor


Play = Callable[[Scene], object]
BUGS: list = []


def bug(right: object, wrong: object) -> Callable[[Play], Play]:
    """Registers a scene with what its repaired form reads and what the bug reads."""

    def register(play: Play) -> Play:
        BUGS.append(pytest.param(play, right, wrong, id=play.__name__))
        return play

    return register


def current() -> torch.Stream:
    return torch.vdev.current_stream()


def filled(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, device="vdev")


@bug(right=OLD, wrong=NEW)
def pinned_memory_is_overwritten_before_the_card_has_read_it(scene):
    host = torch.tensor(OLD).pin_memory()
    with scene.late(current()):
        x = host.to("vdev", non_blocking=True)
        if scene.repaired:
            current().synchronize()
        host.copy_(torch.tensor(NEW))
    return x.tolist()


@bug(right=NEW, wrong=OLD)
def pinned_memory_is_read_before_the_card_has_written_it(scene):
    x, host = filled(NEW), torch.tensor(OLD).pin_memory()
    with scene.late(current()):
        host.copy_(x, non_blocking=True)
        if scene.repaired:
            current().synchronize()
        return host.tolist()


@bug(right=NEW, wrong=OLD)
def the_consumer_does_not_wait_for_the_producer(scene):
    producer, x = torch.vdev.Stream(), filled(OLD)
    producer.wait_stream(current())
    with scene.late(producer):
        with torch.vdev.stream(producer):
            x.add_(1)
        if scene.repaired:
            current().wait_stream(producer)
        return (x * 1).tolist()


@bug(right=NEW, wrong=NEWER)
def memory_is_freed_while_another_stream_reads_it(scene):
    reader, x = torch.vdev.Stream(), filled(NEW)
    reader.wait_stream(current())
    with scene.late(reader):
        with torch.vdev.stream(reader):
            y = x * 1
        if scene.repaired:
            x.record_stream(reader)
        del x
        others = [filled(NEWER) for _ in range(2)]
        current().synchronize()
    current().wait_stream(reader)
    y.record_stream(current())
    assert all(other.tolist() == NEWER for other in others)
    return y.tolist()


@bug(right=True, wrong=False)
def the_clock_is_stopped_before_the_work_has_run(scene):
    """Returns whether the measured time covers the work."""
    ended = []
    with scene.late(current()):
        torch.vdev._launch_host_func(lambda: ended.append(time.monotonic_ns()))
        if scene.repaired:
            current().synchronize()
        stopped = time.monotonic_ns()
    current().synchronize()
    return ended[0] <= stopped


@bug(right=True, wrong="completed")
def the_time_between_events_is_read_before_they_are_reached(scene):
    """Returns whether the measured time covers the work, or the error."""
    start, end = torch.vdev.Event(enable_timing=True), torch.vdev.Event(enable_timing=True)
    start.record()
    with scene.late(current()):
        torch.vdev._sleep(2000)
        end.record()
        if scene.repaired:
            end.synchronize()
        try:
            return start.elapsed_time(end) >= 0.002
        except RuntimeError as error:
            return next(word for word in str(error).split() if word == "completed")


@bug(right=NEW, wrong=OLD)
def a_query_of_an_event_is_taken_for_a_wait(scene):
    x, host = filled(NEW), torch.tensor(OLD).pin_memory()
    with scene.late(current()):
        host.copy_(x, non_blocking=True)
        event = current().record_event()
        while not event.query() and scene.repaired:
            time.sleep(0)
        return host.tolist()


@bug(right=NEW, wrong=OLD)
def a_query_of_a_stream_is_taken_for_a_wait(scene):
    x, host = filled(NEW), torch.tensor(OLD).pin_memory()
    with scene.late(current()):
        host.copy_(x, non_blocking=True)
        while not current().query() and scene.repaired:
            time.sleep(0)
        return host.tolist()


@bug(right=NEW, wrong=OLD)
def an_event_that_was_not_recorded_is_taken_for_completion(scene):
    x, host, event = filled(NEW), torch.tensor(OLD).pin_memory(), torch.vdev.Event()
    with scene.late(current()):
        host.copy_(x, non_blocking=True)
        if scene.repaired:
            event.record()
        while not event.query():
            time.sleep(0)
        return host.tolist()


class Prefetcher:
    """Copies a batch to the card, on a stream of its own, while the program works on the batch before."""

    def __init__(self, batches: list[torch.Tensor], waits: bool, records: bool) -> None:
        self.batches, self.waits, self.records = iter(batches), waits, records
        self.stream = torch.vdev.Stream()

    def preload(self) -> None:
        with torch.vdev.stream(self.stream):
            self.batch = next(self.batches).to("vdev", non_blocking=True)

    def next(self) -> torch.Tensor:
        if self.waits:
            current().wait_stream(self.stream)
        batch = self.batch
        if self.records:
            batch.record_stream(current())
        self.preload()
        return batch


@bug(right=NEW, wrong=OLD)
def a_prefetched_batch_is_read_before_it_is_there(scene):
    loader = Prefetcher([torch.tensor(v).pin_memory() for v in (NEW, NEWER)], scene.repaired, records=True)
    with torch.vdev.stream(loader.stream):
        # The first batch gets the memory of this one.
        before = filled(OLD)
        loader.stream.synchronize()
        del before
    with scene.late(loader.stream):
        loader.preload()
        return (loader.next() * 1).tolist()


@bug(right=NEW, wrong=NEWER)
def a_prefetched_batch_is_overwritten_while_it_is_read(scene):
    batches = [torch.tensor(values).pin_memory() for values in (NEW, OLD, NEWER)]
    loader = Prefetcher(batches, True, scene.repaired)
    loader.preload()
    with scene.late(current()):
        y = loader.next() * 1
        loader.next()
        loader.stream.synchronize()
    return y.tolist()


@bug(right=NEW, wrong=OLD)
def a_thread_gets_a_tensor_without_an_event(scene):
    producer, consumer, x = torch.vdev.Stream(), torch.vdev.Stream(), filled(OLD)
    producer.wait_stream(current())
    consumer.wait_stream(current())

    def consume(event: torch.Event | None) -> list[float]:
        with torch.vdev.stream(consumer):
            if event is not None:
                consumer.wait_event(event)
            return (x * 1).tolist()

    with scene.late(producer):
        with torch.vdev.stream(producer):
            x.add_(1)
        event = producer.record_event() if scene.repaired else None
        return scene.other_thread.submit(consume, event).result(60)


@bug(right=[0.0, 1.0, 2.0, 3.0, 4.0], wrong=[4.0, 3.0, 4.0, 3.0, 4.0])
def a_staging_buffer_is_filled_again_without_waiting_for_its_event(scene):
    buffers = [torch.zeros(SIZE).pin_memory() for _ in range(2)]
    copied = [torch.vdev.Event() for _ in buffers]
    chunks = []
    with scene.late(current()):
        for number in range(5):
            buffer, event = buffers[number % 2], copied[number % 2]
            if scene.repaired:
                event.synchronize()
            buffer.fill_(number)
            chunks.append(buffer.to("vdev", non_blocking=True))
            event.record()
    return [chunk[-1].item() for chunk in chunks]


@bug(right=NEW, wrong=OLD)
def a_hook_reads_a_gradient_on_another_stream(scene):
    weight = torch.ones(SIZE, device="vdev", requires_grad=True)
    weight.grad = filled(OLD)
    side, seen = torch.vdev.Stream(), []
    side.wait_stream(current())

    def hook(parameter: torch.Tensor) -> None:
        if scene.repaired:
            side.wait_stream(current())
        with torch.vdev.stream(side):
            seen.append(parameter.grad * 1)

    weight.register_post_accumulate_grad_hook(hook)
    loss = weight.sum()
    with scene.late(current()):
        loss.backward()
        with torch.vdev.stream(side):
            return seen[0].tolist()


@bug(right=NEW, wrong=OLD)
def an_event_is_recorded_before_the_work(scene):
    side, x = torch.vdev.Stream(), filled(OLD)
    side.wait_stream(current())
    event = side.record_event()
    side.synchronize()
    with scene.late(side):
        with torch.vdev.stream(side):
            x.add_(1)
        if scene.repaired:
            event.record(side)
        current().wait_event(event)
        return (x * 1).tolist()


@bug(right=NEW, wrong=OLD)
def an_event_is_recorded_on_the_current_stream_in_place_of_the_other(scene):
    side, x = torch.vdev.Stream(), filled(OLD)
    side.wait_stream(current())
    with scene.late(side):
        with torch.vdev.stream(side):
            x.add_(1)
        event = torch.vdev.Event()
        event.record(side if scene.repaired else current())
        current().wait_event(event)
        return (x * 1).tolist()


@pytest.fixture(scope="module")
def other_thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.mark.parametrize(("play", "right", "wrong"), BUGS)
def test_the_bug_is_seen(play, right, wrong, gate, fresh_memory, other_thread):
    @contextlib.contextmanager
    def held(stream: torch.Stream) -> Iterator[None]:
        gate.close(stream)
        try:
            yield
        finally:
            gate.open()

    assert play(Scene(repaired=False, late=held, other_thread=other_thread)) == wrong


@pytest.mark.parametrize(("play", "right", "wrong"), BUGS)
def test_the_repair_always_helps(play, right, wrong, other_thread):
    numbers = random.Random(0)

    @contextlib.contextmanager
    def delayed(stream: torch.Stream) -> Iterator[None]:
        # Without a delay the tasks run where the program waits, and otherwise on the stream's worker.
        if nanoseconds := numbers.choice((0, 1, 20_000)):
            with torch.vdev.stream(stream):
                torch.vdev._sleep(nanoseconds)
        yield

    scene = Scene(repaired=True, late=delayed, other_thread=other_thread)
    for number in range(ROUNDS):
        read = play(scene)
        assert read == right, f"round {number} of {ROUNDS} read {read}"
