"""Random programs of operators, copies, frees and graphs on streams of several threads, against the CPU.

Every value on a card has a twin on the CPU, to which the same operators are applied at once. Everything that
a program for a GPU needs between streams is done, and nothing more. VCCL_TEST_SECONDS=600 plays programs for
that long, and VCCL_TEST_SEED=N begins with the seed N.
"""

import collections
from collections.abc import Callable

import players
import torch
from players import STEPS, Function, Tensor, Value, count
from random_programs import SECONDS, SEED, play_together, seeds

from vccl import _C

THREADS, ROUNDS = 3, 40


def gradient(a: Tensor) -> Tensor:
    x = a.remainder(1000).double().requires_grad_()
    (x * x).sum().backward()
    return x.grad.long()


MAKE: list[Function] = [
    *players.MAKE,
    lambda a, b: (a.view(8, -1) @ b.view(-1, 8)).sum() + a,
    lambda a, b: torch.stack([a, b]).max(dim=0).values,
    lambda a, b: gradient(a) ^ b,
    lambda a, b: a.masked_fill(b > 0, 7).contiguous().clone(),
]
CHANGE: list[Function] = [
    *players.CHANGE,
    lambda a, b: a.copy_(b),
    lambda a, b: a[::2].copy_(b[1::2]),
    lambda a, b: torch._foreach_add_([a], [b]),
]


class Player(players.Player):
    def __init__(self, seed: int, market: collections.deque[Value]) -> None:
        super().__init__(seed, market, size=16)
        self.copies: list[tuple[Tensor, Tensor, torch.Event]] = []

    def play(self) -> None:
        self.size = self.random.choice((16, 64, 1024, 20_000))
        for _ in range(2):
            self.step(self.upload)
        steps = [self.make, self.change, self.free, self.upload, self.download, self.read, self.hand_over]
        for _ in range(STEPS):
            self.step(self.random.choices(steps, weights=[10, 5, 4, 2, 3, 1, 1])[0])
        if self.random.random() < 0.3:
            self.graph()
        for host, twin, event in self.copies:
            event.synchronize()
            assert torch.equal(host, twin)
        self.copies.clear()
        self.read_all()
        if self.random.random() < 0.1:
            torch.vdev.empty_cache()
        if self.random.random() < 0.1:
            _C._forget_calls()

    def make(self) -> None:
        a, b, function = (
            self.random.choice(self.values),
            self.random.choice(self.values),
            self.random.choice(MAKE),
        )
        result = function(self.ready(a), self.ready(b))
        self.has_read(a, b)
        self.keep(result, function(a.twin, b.twin))

    def change(self) -> None:
        if len(self.values) < 2:
            return
        a, b = self.random.sample(self.values, 2)
        function = self.random.choice(CHANGE)
        function(self.ready(a, to_write=True), self.ready(b))
        function(a.twin, b.twin)
        self.has_read(b)
        a.wrote(self.mark())

    def upload(self) -> None:
        twin = self.fresh()
        host = twin.clone()
        if self.random.random() < 0.5:
            self.keep(host.pin_memory().to("vdev", non_blocking=True), twin)
        else:
            # Pageable memory is read at the call.
            self.keep(host.to("vdev", non_blocking=True), twin)
            host.zero_()

    def download(self) -> None:
        value = self.random.choice(self.values)
        host = torch.zeros(self.size, dtype=torch.int64).pin_memory()
        host.copy_(self.ready(value), non_blocking=True)
        self.copies.append((host, value.twin.clone(), self.has_read(value).event))

    def check(self, value: Value) -> None:
        assert torch.equal(self.ready(value).cpu(), value.twin)

    def graph(self) -> None:
        """Captures operators on two streams, and replays them with other elements."""
        one, other = self.streams[:2]
        functions = self.random.choices([f for f in MAKE if f is not count], k=4)
        changes = self.random.choices(CHANGE, k=2)

        def compute(a: Tensor, b: Tensor, fork: Callable[[], None], join: Callable[[], None]) -> Tensor:
            c = functions[0](a, b)
            fork()
            with torch.vdev.stream(None if a.is_cpu else other):
                d = functions[1](c, a)
                changes[0](d, b)
            e = functions[2](c, b)
            join()
            changes[1](e, d)
            return functions[3](e, d)

        for stream in self.streams:
            stream.synchronize()
        with torch.vdev.stream(one):
            a, b = self.fresh().to("vdev"), self.fresh().to("vdev")
            one.synchronize()
            graph = torch.vdev.VDEVGraph()
            graph.capture_begin(capture_error_mode="relaxed")
            result = compute(a, b, lambda: other.wait_stream(one), lambda: one.wait_stream(other))
            graph.capture_end()
        replays = self.streams[2]
        with torch.vdev.stream(replays):
            for _ in range(3):
                new_a, new_b = self.fresh(), self.fresh()
                a.copy_(new_a, non_blocking=True)
                b.copy_(new_b, non_blocking=True)
                graph.replay()
                assert torch.equal(result.cpu(), compute(new_a, new_b, lambda: None, lambda: None))
        graph.reset()


def play(seed: int) -> None:
    market: collections.deque[Value] = collections.deque()

    def player(number: int) -> Callable[[], None]:
        def play() -> None:
            player = Player(seed * THREADS + number, market)
            for _ in range(ROUNDS):
                player.play()

        return play

    play_together(seed, [player(number) for number in range(THREADS)])


def test_random_programs():
    played = 0
    for seed in seeds(1):
        play(seed)
        played += 1
    if SECONDS:
        print(f"{played * THREADS * ROUNDS} programs of {STEPS} steps, from seed {SEED} on")
