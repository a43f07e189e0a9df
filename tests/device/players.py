"""The base of tests in which threads play random programs on a card's streams, and compare it with the CPU.

Every value on a card has a twin on the CPU, to which the same operators are applied at once. Everything that
a program for a GPU needs between streams is done, and nothing more.
"""

import collections
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch

STREAMS, STEPS = 3, 40
Tensor = torch.Tensor
Function = Callable[[Tensor, Tensor], Tensor]


def count(a: Tensor, b: Tensor) -> Tensor:
    """Waits for the card, since the shape of an intermediate result depends on elements."""
    return a + len(b.remainder(5).nonzero())


# With integers, the results do not depend on the order of additions. All tensors have one size.
MAKE: list[Function] = [
    lambda a, b: a + b * 3,
    lambda a, b: torch.where(a > b, a, b).flip(0),
    lambda a, b: torch.cat([a[: len(a) // 2], b[len(b) // 2 :]]).cumsum(0),
    lambda a, b: a.sort().values - b.roll(7),
    lambda a, b: a[b.remainder(len(a))],
    count,
]
CHANGE: list[Function] = [
    lambda a, b: a.add_(b),
    lambda a, b: a.mul_(3).sub_(b),
    lambda a, b: a.index_add_(0, b.remainder(len(a)), b),
]


@dataclass
class Mark:
    """A place in a stream, for which users of a value wait."""

    event: torch.Event
    behind_a_stop: bool = False  # the stream gives up its tasks from an earlier place on


@dataclass(eq=False, repr=False)
class Value:
    """A tensor on a card, its twin, and the places where it was written and has been read since."""

    tensor: Tensor
    twin: Tensor
    written: Mark
    bad: bool = False  # a task that has failed, or that was given up, should have written it
    reads: list[Mark] = field(default_factory=list)

    def wrote(self, mark: Mark) -> None:
        self.written, self.reads = mark, []


class Player:
    """Plays a program. Players of other threads give it values, and take some, through the market."""

    # How often a step makes its stream slow, and by how many cycles.
    SLEEPY = 0.1
    CYCLES: ClassVar[tuple[int, ...]] = (1, 20_000, 200_000)

    def __init__(self, seed: int, market: collections.deque[Value], size: int) -> None:
        self.random, self.size = random.Random(seed), size
        self.numbers = torch.Generator().manual_seed(seed)
        self.market = market
        self.streams = [torch.vdev.Stream(priority=-(number % 2)) for number in range(STREAMS)]
        self.values: list[Value] = []

    def step(self, step: Callable[[], None]) -> None:
        """Takes a step on one of the streams."""
        with torch.vdev.stream(self.random.choice(self.streams)):
            if self.random.random() < self.SLEEPY:
                torch.vdev._sleep(self.random.choice(self.CYCLES))
            step()

    def check(self, value: Value) -> None:
        """Compares a value with its twin."""
        raise NotImplementedError

    def stops(self) -> bool:
        """Returns whether the current stream gives up every task."""
        return False

    def inherit_stop(self) -> None:
        """The current stream waits for one that gives up every task."""

    def mark(self) -> Mark:
        return Mark(torch.vdev.current_stream().record_event(), self.stops())

    def keep(self, tensor: Tensor, twin: Tensor, bad: bool = False) -> None:
        """Call this on the stream that has written the tensor, or should have."""
        self.values.append(Value(tensor, twin, self.mark(), bad))

    def fresh(self) -> Tensor:
        return torch.randint(-1000, 1000, (self.size,), generator=self.numbers)

    def ready(self, value: Value, to_write: bool = False) -> Tensor:
        """Returns the tensor when the current stream may read it, or also write it. May raise."""
        stream = torch.vdev.current_stream()
        for mark in [value.written, *(value.reads if to_write else [])]:
            chance = self.random.random()
            if chance < 0.2:
                mark.event.synchronize()
            elif chance < 0.3:
                while not mark.event.query():
                    time.sleep(0)
            else:
                stream.wait_event(mark.event)
                if mark.behind_a_stop:
                    self.inherit_stop()
        value.tensor.record_stream(stream)
        return value.tensor

    def has_read(self, *values: Value) -> Mark:
        mark = self.mark()
        for value in values:
            value.reads.append(mark)
        return mark

    def free(self) -> None:
        if len(self.values) > 2:
            self.values.pop(self.random.randrange(len(self.values)))

    def read(self) -> None:
        if self.values:
            self.check(self.values[-1])

    def hand_over(self) -> None:
        """Gives a value to another thread, and takes one."""
        if len(self.values) > 2:
            self.market.append(self.values.pop())
        try:
            value = self.market.popleft()
        except IndexError:
            return
        self.check(value)

    def read_all(self) -> None:
        while self.values:
            self.step(self.read)
            self.values.pop()
