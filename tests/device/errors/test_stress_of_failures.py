"""Random programs in which kernels and host functions fail, against an oracle that knows what depends on it.

Every value on a card has a twin on the CPU. A value is bad if a task that has failed, or that was given up,
should have written it. Whatever is read without an error has to equal its twin, and a bad value must never be
read. There are operators that run as tasks and at their calls, several streams and threads, copies to pinned
memory that the host polls for, graphs whose replays fail in the middle, and sends. VCCL_TEST_SECONDS=600
plays programs for that long, VCCL_TEST_PROGRAMS=1000 that many, and VCCL_TEST_SEED=N begins with the seed N.
"""

import collections
import contextlib
import random
import time
from collections.abc import Callable
from typing import ClassVar

import players
import pytest
import random_programs
import torch
import torch.multiprocessing
from players import CHANGE, MAKE, STEPS, Tensor, Value
from random_programs import Refused, insist, number_of_programs, play_together, refuses, seeds

PROGRAMS = number_of_programs(20)
SIZE, BAD = 64, 10**6


def spoils(failed: bool, *operands: Value) -> bool:
    return failed or any(value.bad for value in operands)


def current_id() -> int:
    return torch.vdev.current_stream().stream_id


class Player(players.Player):
    SLEEPY = 0.2
    CYCLES = (1, 20_000, 300_000)
    # The streams on which a host function has failed, and those that have waited for such a stream. Each
    # thread adds only its own streams.
    stopped: ClassVar[set[int]] = set()
    counts: ClassVar[collections.Counter[str]] = collections.Counter()

    def __init__(self, seed: int, market: collections.deque[Value], alone: bool) -> None:
        super().__init__(seed, market, SIZE)
        self.alone = alone
        self.copies: list[tuple[Tensor, Tensor, torch.Event, bool]] = []
        self.index = torch.full((SIZE,), BAD, device="vdev")
        torch.vdev.current_stream().synchronize()
        self.queue = torch.multiprocessing.get_context("spawn").SimpleQueue()

    def play(self) -> None:
        self.step(self.upload)
        self.step(self.upload)
        steps = {self.make: 10, self.change: 5, self.fail: 2, self.overwrite: 2, self.free: 4, self.upload: 2}
        steps |= {self.download: 3, self.poll: 2, self.read: 3, self.synchronize: 1, self.hand_over: 1}
        steps |= {self.send: 1, self.stop: 0.15, self.clear: 0.2, self.graph: 0.2, self.host_function: 0.3}
        for _ in range(STEPS):
            self.step(self.random.choices(list(steps), weights=list(steps.values()))[0])
        while self.copies:
            self.step(self.poll)
        self.read_all()

    def any_value(self) -> Value:
        while not self.values:
            self.upload()
        return self.random.choice(self.values)

    def stops(self) -> bool:
        return current_id() in self.stopped

    def inherit_stop(self) -> None:
        self.stopped.add(current_id())

    def make(self) -> None:
        a, b, function = self.any_value(), self.any_value(), self.random.choice(MAKE)
        try:
            result = function(self.ready(a), self.ready(b))
        except Refused:
            return self.refused()
        self.has_read(a, b)
        self.keep(result, function(a.twin, b.twin), spoils(self.stops(), a, b))

    def change(self) -> None:
        a, b, function = self.any_value(), self.any_value(), self.random.choice(CHANGE)
        if a is b:
            return
        try:
            target, operand = self.ready(a, to_write=True), self.ready(b)
        except Refused:
            return self.refused()
        try:
            function(target, operand)
        except Refused:
            # Of several operators, the first may have run.
            self.values.remove(a)
            return self.refused()
        function(a.twin, b.twin)
        self.has_read(b)
        a.bad = spoils(self.stops(), a, b)
        a.wrote(self.mark())

    def fail(self) -> None:
        """A kernel that fails: its result is bad, or the tensor that it changes."""
        a = self.any_value()
        in_place = self.random.random() < 0.5
        try:
            tensor = self.ready(a, to_write=in_place)
        except Refused:
            return self.refused()
        try:
            if in_place:
                tensor.index_add_(0, self.index, tensor.clone())
                a.bad = True
                a.wrote(self.mark())
            else:
                result = tensor[self.index]
                self.has_read(a)
                if self.random.random() < 0.8:
                    self.keep(result, a.twin.clone(), True)
        except Refused:
            if in_place:
                self.values.remove(a)  # the kernel may have changed a part
        self.counts["failed kernels"] += 1

    def overwrite(self) -> None:
        """Makes a value good again."""
        a = self.any_value()
        try:
            tensor = self.ready(a, to_write=True)
            tensor.fill_(7)
        except Refused:
            return self.refused()
        a.twin.fill_(7)
        a.bad = self.stops()
        a.wrote(self.mark())

    def upload(self) -> None:
        twin = self.fresh()
        host = twin.clone()
        try:
            if self.random.random() < 0.5:
                tensor = host.pin_memory().to("vdev", non_blocking=True)
            else:
                tensor = host.to("vdev")
            self.keep(tensor, twin, self.stops())
        except Refused:
            self.refused()
            # One of the next streams has not been stopped.
            with torch.vdev.stream(torch.vdev.Stream()), contextlib.suppress(*Refused):
                self.keep(torch.tensor(twin.tolist(), device="vdev"), twin, self.stops())

    def download(self) -> None:
        value = self.any_value()
        host = torch.zeros(SIZE, dtype=torch.int64).pin_memory()
        try:
            host.copy_(self.ready(value), non_blocking=True)
        except Refused:
            return self.refused()
        event = self.has_read(value).event
        self.copies.append((host, value.twin.clone(), event, spoils(self.stops(), value)))

    def poll(self) -> None:
        """Waits for a copy, and reads pinned memory unless the wait has raised."""
        if not self.copies:
            return
        host, twin, event, bad = self.copies.pop(self.random.randrange(len(self.copies)))
        try:
            if self.random.random() < 0.5:
                event.synchronize()
            while not event.query():
                time.sleep(0)
        except Refused:
            return self.refused()
        assert not bad, "the host was not told that a copy has not run"
        assert torch.equal(host, twin), "a copy to pinned memory is wrong"
        self.counts["polled"] += 1

    def check(self, value: Value) -> None:
        try:
            seen = self.ready(value).cpu()
        except Refused:
            self.counts["bad values refused" if value.bad else "good values refused"] += 1
            return
        assert not value.bad, "a value was read that depends on a failed task"
        assert torch.equal(seen, value.twin), "a value is wrong"
        self.counts["read"] += 1

    def synchronize(self) -> None:
        """A stream with a bad value of the program raises, whoever else has heard of it."""
        value = self.any_value()
        stream = torch.vdev.current_stream()
        try:
            self.ready(value)
            self.random.choice([stream.synchronize, torch.vdev.synchronize])()
        except Refused:
            return self.refused()
        assert not value.bad, "a synchronisation has raised nothing"

    def send(self) -> None:
        value = self.any_value()
        try:
            tensor = self.ready(value)
            torch.vdev.current_stream().record_event()
            self.queue.put(tensor)
        except Refused:
            return self.refused()
        received = self.queue.get()
        assert not value.bad, "a value was sent that depends on a failed task"
        try:
            assert torch.equal(received.cpu(), value.twin)
        except Refused:
            self.refused()
        self.counts["sent"] += 1

    def stop(self) -> None:
        """A host function that fails: nobody knows what it should have written."""

        def fail() -> None:
            raise ValueError("the reason")

        self.stopped.add(current_id())
        torch.vdev._launch_host_func(fail)
        self.counts["failed host functions"] += 1

    def host_function(self) -> None:
        """A host function that fills pinned memory, which is then copied. It may be given up."""
        twin = self.fresh()
        host = torch.zeros(SIZE, dtype=torch.int64).pin_memory()
        torch.vdev._launch_host_func(lambda: host.copy_(twin) and None)
        try:
            tensor = host.to("vdev", non_blocking=True)
        except Refused:
            return self.refused()
        self.keep(tensor, twin, self.stops())

    def clear(self) -> None:
        """The program knows of all failures, and gives up what depends on them."""
        if not self.alone:
            return
        torch.vdev.clear_errors()
        self.stopped.clear()
        self.values = [value for value in self.values if not value.bad]
        for mark in [mark for value in self.values for mark in (value.written, *value.reads)]:
            mark.behind_a_stop = False
        self.copies.clear()
        self.market.clear()
        torch.vdev.synchronize()
        # Of what a host function has not filled, the oracle does not know whether it was given up.
        self.values = [value for value in self.values if self.is_known(value)]

    def is_known(self, value: Value) -> bool:
        return torch.equal(value.tensor.cpu(), value.twin)

    def graph(self) -> None:
        if not self.alone:
            return  # other threads synchronise with the whole card, which a capture does not allow
        with torch.vdev.stream(torch.vdev.Stream()):
            if self.stops():
                return
            source, other, index = (
                insist(lambda twin=twin: twin.to("vdev"))
                for twin in (self.fresh(), self.fresh(), torch.zeros(SIZE, dtype=torch.int64))
            )
            graph = torch.vdev.VDEVGraph()
            graph.capture_begin(capture_error_mode="relaxed")
            first = source[index]
            second = (first * 2 + other).flip(0)
            good = other * 3
            other.add_(1)
            graph.capture_end()
            for _ in range(self.random.randrange(1, 5)):
                fails = self.random.random() < 0.4
                insist(lambda value=BAD if fails else 0: index.fill_(value))
                graph.replay()
                twin = insist(other.cpu) - 1
                wanted = insist(source.cpu)[torch.zeros(SIZE, dtype=torch.int64)]
                results = [(first, wanted), (second, (wanted * 2 + twin).flip(0))]
                for tensor, right in results:
                    if fails:
                        refuses(tensor.cpu)
                    else:
                        assert torch.equal(insist(tensor.cpu), right), "a replay has given a wrong result"
                assert torch.equal(insist(good.cpu), twin * 3)
            self.counts["graphs"] += 1

    def refused(self) -> None:
        self.counts["refused"] += 1


def play(seed: int) -> None:
    """Plays a program with one to three threads."""
    threads = random.Random(seed).choice((1, 1, 2, 3))
    market: collections.deque[Value] = collections.deque()
    Player.stopped = set()

    def player(number: int) -> Callable[[], None]:
        return lambda: Player(seed * 3 + number, market, threads == 1).play()

    try:
        play_together(seed, [player(number) for number in range(threads)])
    finally:
        market.clear()
        torch.vdev.clear_errors()
    torch.vdev.synchronize()


@pytest.mark.asynchronous
def test_random_programs():
    Player.counts.clear()
    played = 0
    for seed in seeds(PROGRAMS):
        play(seed)
        played += 1
    counts = Player.counts
    assert counts["read"] and counts["bad values refused"] and counts["polled"], counts
    print(f"{played} programs of {STEPS} steps, from seed {random_programs.SEED} on: {dict(counts)}")
