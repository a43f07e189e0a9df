"""Random programs over streams, events, the host and its pinned memory, judged by brute force.

The oracle keeps for each stream, for each event and for the host the set of all accesses that come before, as
the bits of a number. It compares each access with every earlier one. Its verdict on every access must be the
sanitizer's.
"""

import os
import random
from dataclasses import dataclass, field

import pytest
import torch

import vccl.sanitizer

# Continuous integration plays fewer programs than the 10,000 that VCCL_TEST_ROUNDS asks for.
ROUNDS = int(os.environ.get("VCCL_TEST_ROUNDS", "150"))
SIZE, STREAMS, STEPS = 12, 4, 40
HOST = -1


@dataclass
class Oracle:
    before: dict[int, int] = field(default_factory=dict)  # of the host and of each stream, as bits
    accesses: list[tuple[str, set[int], bool]] = field(default_factory=list)

    def wait(self, waiter: int, before: int) -> None:
        self.before[waiter] = self.point(waiter) | before

    def point(self, lane: int) -> int:
        return self.before.get(lane, 0)

    def launch(self, stream: int, *touched: tuple[str, set[int], bool]) -> bool:
        """Returns whether one of the accesses of a call races with an earlier one."""
        if stream != HOST:
            self.wait(stream, self.point(HOST))
        known = len(self.accesses)
        racing = False
        for name, elements, writes in touched:
            for number, (other, others, written) in enumerate(self.accesses[:known]):
                conflicts = other == name and (writes or written) and elements & others
                racing |= bool(conflicts) and not self.point(stream) >> number & 1
        for access in touched:
            self.wait(stream, 1 << len(self.accesses))
            self.accesses.append(access)
        return racing


class Player:
    """Plays one program, and asks both after every step."""

    def __init__(self, numbers: random.Random, found: vccl.sanitizer.Found) -> None:
        self.numbers, self.found, self.oracle = numbers, found, Oracle()
        self.streams = [torch.vdev.Stream() for _ in range(STREAMS)]
        self.card = torch.empty(SIZE, device="vdev")
        self.host = torch.empty(SIZE, pin_memory=True)
        self.events = [(torch.vdev.Event(), 0) for _ in range(3)]
        self.seen = 0

    def part(self) -> tuple[slice, set[int]]:
        step = self.numbers.choice((1, 1, 2, 3))
        begin = self.numbers.randrange(SIZE)
        part = slice(begin, self.numbers.randrange(begin, SIZE) + 1, step)
        return part, set(range(SIZE)[part])

    def step(self) -> None:
        stream, action = self.numbers.randrange(STREAMS), self.numbers.randrange(10)
        part, elements = self.part()
        expected = False
        with torch.vdev.stream(self.streams[stream]):
            if action < 2:
                self.card[part].fill_(1)
                expected = self.oracle.launch(stream, ("card", elements, True))
            elif action < 4:
                self.card[part].sum()
                expected = self.oracle.launch(stream, ("card", elements, False))
            elif action == 4:
                self.host[part].copy_(self.card[part], non_blocking=True)
                touched = (("card", elements, False), ("host", elements, True))
                expected = self.oracle.launch(stream, *touched)
            elif action == 5:
                self.card[part].copy_(self.host[part], non_blocking=True)
                touched = (("card", elements, True), ("host", elements, False))
                expected = self.oracle.launch(stream, *touched)
            elif action == 6:
                self.host[part].sum()
                expected = self.oracle.launch(HOST, ("host", elements, False))
            else:
                self.order(stream, action)
        count = sum(report["count"] for report in self.found.reports)
        assert (count > self.seen) == expected, self.found.reports[-1:]
        self.seen = count

    def order(self, stream: int, action: int) -> None:
        other, number = self.numbers.randrange(STREAMS), self.numbers.randrange(len(self.events))
        event, point = self.events[number]
        if action == 7:
            self.streams[stream].wait_stream(self.streams[other])
            self.oracle.wait(stream, self.oracle.point(other) | self.oracle.point(HOST))
        elif action == 8 and self.numbers.randrange(2):
            event.record()
            self.oracle.wait(stream, self.oracle.point(HOST))
            self.events[number] = (event, self.oracle.point(stream))
        elif action == 8:
            event.wait()
            self.oracle.wait(stream, point)
        elif self.numbers.randrange(3) == 0:
            self.streams[other].synchronize()
            self.oracle.wait(HOST, self.oracle.point(other))
        elif self.numbers.randrange(2):
            event.synchronize()
            self.oracle.wait(HOST, point)
        elif self.numbers.randrange(20) == 0:
            torch.vdev.synchronize()
            for each in range(STREAMS):
                self.oracle.wait(HOST, self.oracle.point(each))


@pytest.mark.parametrize("seed", range(5))
def test_every_verdict_is_the_oracles(seed):
    numbers = random.Random(seed)
    racing = 0
    for _ in range(max(1, ROUNDS // 5)):
        torch.vdev.synchronize()
        with vccl.sanitizer.enabled() as found:
            player = Player(numbers, found)
            for _ in range(STEPS):
                player.step()
        racing += found.count > 0
    assert racing > 0
