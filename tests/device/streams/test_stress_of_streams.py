"""Random programs of operators, copies, frees and graphs on streams of several threads, against the CPU.

Every value on a card has a twin on the CPU, to which the same operators are applied at once. Everything that
a program for a GPU needs between streams is done, and nothing more. VCCL_TEST_SECONDS=600 plays programs for
that long, and VCCL_TEST_SEED=N begins with the seed N.
"""

import collections
import os
import random
import threading
import time
from collections.abc import Callable

import torch

from vccl import _C

SECONDS = float(os.environ.get("VCCL_TEST_SECONDS", "0"))
SEED = int(os.environ.get("VCCL_TEST_SEED", "0"))
THREADS, STREAMS, ROUNDS, STEPS = 3, 3, 40, 40
Tensor = torch.Tensor


def gradient(a: Tensor) -> Tensor:
    x = a.remainder(1000).double().requires_grad_()
    (x * x).sum().backward()
    return x.grad.long()


# With integers, the results do not depend on the order of additions. All tensors have one size.
MAKE: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: a + b * 3,
    lambda a, b: torch.where(a > b, a, b).flip(0),
    lambda a, b: torch.cat([a[: len(a) // 2], b[len(b) // 2 :]]).cumsum(0),
    lambda a, b: a.sort().values - b.roll(7),
    lambda a, b: (a.view(8, -1) @ b.view(-1, 8)).sum() + a,
    lambda a, b: a[b.remainder(len(a))],
    lambda a, b: a + len(b.remainder(5).nonzero()),
    lambda a, b: torch.stack([a, b]).max(dim=0).values,
    lambda a, b: gradient(a) ^ b,
    lambda a, b: a.masked_fill(b > 0, 7).contiguous().clone(),
]
CHANGE: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: a.add_(b),
    lambda a, b: a.copy_(b),
    lambda a, b: a.mul_(3).sub_(b),
    lambda a, b: a[::2].copy_(b[1::2]),
    lambda a, b: torch._foreach_add_([a], [b]),
    lambda a, b: a.index_add_(0, b.remainder(len(a)), b),
]


class Value:
    """A tensor on a card, its twin, and the events that its users must wait for."""

    def __init__(self, tensor: Tensor, twin: Tensor) -> None:
        self.tensor, self.twin = tensor, twin
        self.wrote()

    def wrote(self) -> None:
        """Call this on the stream that has written the tensor."""
        self.written = torch.vdev.current_stream().record_event()
        self.reads: list[torch.Event] = []


class Player:
    def __init__(self, seed: int, market: collections.deque[Value]) -> None:
        self.random = random.Random(seed)
        self.numbers = torch.Generator().manual_seed(seed)
        self.market = market
        self.streams = [torch.vdev.Stream(priority=-(number % 2)) for number in range(STREAMS)]
        self.values: list[Value] = []
        self.copies: list[tuple[Tensor, Tensor, torch.Event]] = []

    def play(self) -> None:
        self.size = self.random.choice((16, 64, 1024, 20_000))
        for _ in range(2):
            with torch.vdev.stream(self.random.choice(self.streams)):
                self.upload()
        steps = [self.make, self.change, self.free, self.upload, self.download, self.read, self.hand_over]
        for _ in range(STEPS):
            with torch.vdev.stream(self.random.choice(self.streams)):
                if self.random.random() < 0.1:
                    torch.vdev._sleep(self.random.choice((1, 20_000, 200_000)))
                self.random.choices(steps, weights=[10, 5, 4, 2, 3, 1, 1])[0]()
        if self.random.random() < 0.3:
            self.graph()
        for host, twin, event in self.copies:
            event.synchronize()
            assert torch.equal(host, twin)
        self.copies.clear()
        while self.values:
            with torch.vdev.stream(self.random.choice(self.streams)):
                self.read()
                self.values.pop()
        if self.random.random() < 0.1:
            torch.vdev.empty_cache()
        if self.random.random() < 0.1:
            _C._forget_calls()

    def fresh(self) -> Tensor:
        return torch.randint(-1000, 1000, (self.size,), generator=self.numbers)

    def ready(self, value: Value, to_write: bool = False) -> Tensor:
        """Returns the tensor when the current stream may read it, or also write it."""
        stream = torch.vdev.current_stream()
        for event in [value.written, *(value.reads if to_write else [])]:
            if self.random.random() < 0.2:
                event.synchronize()
            elif self.random.random() < 0.1:
                while not event.query():
                    time.sleep(0)
            else:
                stream.wait_event(event)
        value.tensor.record_stream(stream)
        return value.tensor

    def has_read(self, *values: Value) -> None:
        event = torch.vdev.current_stream().record_event()
        for value in values:
            value.reads.append(event)

    def make(self) -> None:
        a, b, function = (
            self.random.choice(self.values),
            self.random.choice(self.values),
            self.random.choice(MAKE),
        )
        result = function(self.ready(a), self.ready(b))
        self.has_read(a, b)
        self.values.append(Value(result, function(a.twin, b.twin)))

    def change(self) -> None:
        if len(self.values) < 2:
            return
        a, b = self.random.sample(self.values, 2)
        function = self.random.choice(CHANGE)
        function(self.ready(a, to_write=True), self.ready(b))
        function(a.twin, b.twin)
        self.has_read(b)
        a.wrote()

    def free(self) -> None:
        if len(self.values) > 2:
            self.values.pop(self.random.randrange(len(self.values)))

    def upload(self) -> None:
        twin = self.fresh()
        host = twin.clone()
        if self.random.random() < 0.5:
            self.values.append(Value(host.pin_memory().to("vdev", non_blocking=True), twin))
        else:
            # Pageable memory is read at the call.
            self.values.append(Value(host.to("vdev", non_blocking=True), twin))
            host.zero_()

    def download(self) -> None:
        value = self.random.choice(self.values)
        host = torch.zeros(self.size, dtype=torch.int64).pin_memory()
        host.copy_(self.ready(value), non_blocking=True)
        self.has_read(value)
        self.copies.append((host, value.twin.clone(), value.reads[-1]))

    def read(self) -> None:
        value = self.values[-1]
        assert torch.equal(self.ready(value).cpu(), value.twin)

    def hand_over(self) -> None:
        """Gives a value to another thread, and takes one."""
        if len(self.values) > 2:
            self.market.append(self.values.pop())
        try:
            value = self.market.popleft()
        except IndexError:
            return
        assert torch.equal(self.ready(value).cpu(), value.twin)

    def graph(self) -> None:
        """Captures operators on two streams, and replays them with other elements."""
        one, other = self.streams[:2]
        functions = self.random.choices([f for f in MAKE if f is not MAKE[6]], k=4)
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
    """Plays with THREADS threads, and raises what one of them has raised, with its seed."""
    market: collections.deque[Value] = collections.deque()
    wrong: list[tuple[int, BaseException]] = []

    def work(seed: int) -> None:
        try:
            player = Player(seed, market)
            for _ in range(ROUNDS):
                if wrong:
                    return
                player.play()
        except BaseException as error:
            wrong.append((seed, error))

    threads = [threading.Thread(target=work, args=(seed * THREADS + number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert not any(thread.is_alive() for thread in threads), f"seed {seed}: threads have not ended"
    for thread_seed, error in wrong:
        raise AssertionError(f"VCCL_TEST_SEED={seed}, thread {thread_seed % THREADS}: {error!r}") from error


def test_random_programs():
    end = time.monotonic() + SECONDS
    seed = SEED
    while seed == SEED or time.monotonic() < end:
        play(seed)
        seed += 1
    if SECONDS:
        print(f"{(seed - SEED) * THREADS * ROUNDS} programs of {STEPS} steps, from seed {SEED} on")
