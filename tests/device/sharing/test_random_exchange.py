"""Processes that exchange tensors of cards at random, through torch.multiprocessing.

The verdicts depend on the seed alone: what a process holds is compared with a model of it, and what is left
behind is looked at when nobody holds anything any more. VCCL_TEST_SEED=N plays the seed N.
"""

import dataclasses
import gc
import itertools
import os
import pickle
import random
import re
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from other_process import KEPT, SPAWN, TIMEOUT, OtherProcess, forget, keep
from test_process_sharing import receive, send

SEEDS = [int(os.environ["VCCL_TEST_SEED"])] if "VCCL_TEST_SEED" in os.environ else [0, 1]
DTYPES = [torch.float32, torch.uint8, torch.int64, torch.bfloat16]
STEPS = 150
MESSAGES = 60


class Here:
    """Calls functions in this process, as OtherProcess does in another."""

    def call(self, function: Callable, *arguments: object) -> Any:
        return function(*arguments)


# ---- what a process does


def make(name: str, size: int, dtype: torch.dtype, value: int) -> None:
    KEPT[name] = torch.full((size,), value, dtype=dtype, device="vdev")


def make_view(name: str, of: str, place: tuple) -> None:
    KEPT[name] = KEPT[of].as_strided(*place)


def write(name: str, value: int) -> None:
    KEPT[name].fill_(value)
    torch.vdev.synchronize()  # what several processes do is ordered by the test


def read(name: str) -> list:
    return KEPT[name].tolist()


def drop(name: str) -> None:
    del KEPT[name]


def collected() -> tuple[int, int]:
    """Returns the allocated bytes, and how many cards' memories are mapped, when what nobody uses is free."""
    torch.empty(1, device="vdev")  # the card's own memory is mapped from now on
    gc.collect()
    torch.vdev.synchronize()
    torch.vdev.ipc_collect()
    with open("/proc/self/maps") as maps:
        memories = {line.split()[4] for line in maps if re.search(r"/memfd:vdev:\d", line)}  # inodes
    return torch.vdev.memory_allocated(), len(memories)


# ---- the model


@dataclasses.dataclass
class Held:
    """A tensor that a process holds: its name there, and the same view of the model's copy of the memory."""

    name: str
    model: torch.Tensor


class Exchange:
    """Plays random steps on several processes and on the model."""

    def __init__(self, seed: int, processes: list[Any]) -> None:
        self.random = random.Random(seed)
        self.processes = processes
        self.held: list[list[Held]] = [[] for _ in processes]
        self.names = (f"x{number}" for number in itertools.count())

    def pick(self) -> tuple[int, Held] | None:
        """Returns a process and a tensor that it holds."""
        owners = [index for index, held in enumerate(self.held) if held]
        if not owners:
            return None
        index = self.random.choice(owners)
        return index, self.random.choice(self.held[index])

    def step(self) -> None:
        picked = self.pick()
        actions = (
            [self.make] if picked is None else [self.make, self.view, self.pass_on, self.write, self.drop]
        )
        weights = [1] if picked is None else [2, 2, 5, 3, 2]
        (action,) = self.random.choices(actions, weights)
        if action == self.make:
            self.make()
        else:
            action(*picked)

    def make(self) -> None:
        index = self.random.randrange(len(self.processes))
        size = self.random.choice([1, 7, 128, 1000, self.random.randrange(1, 10_000)])
        dtype, value, name = self.random.choice(DTYPES), self.random.randrange(100), next(self.names)
        self.processes[index].call(make, name, size, dtype, value)
        self.held[index].append(Held(name, torch.full((size,), value, dtype=dtype)))

    def view(self, index: int, source: Held) -> None:
        length = source.model.untyped_storage().nbytes() // source.model.element_size()
        offset = self.random.randrange(length)
        step = self.random.choice([1, 2, 3])
        rows = self.random.randrange(1, (length - offset - 1) // step + 2)
        columns = self.random.choice([None, 0])
        place = ((rows,), (step,), offset) if columns is None else ((2, rows), (0, step), offset)
        name = next(self.names)
        self.processes[index].call(make_view, name, source.name, place)
        self.held[index].append(Held(name, source.model.as_strided(*place)))

    def pass_on(self, index: int, sent: Held) -> None:
        """Sends a tensor to any process, which may be the same one, or have its storage already."""
        to = self.random.randrange(len(self.processes))
        name = next(self.names)
        sender, receiver = self.processes[index], self.processes[to]
        ours, theirs = SPAWN.Pipe()
        sender.call(send, theirs, sent.name)
        if self.random.random() < 0.2:  # the message alone keeps the memory
            sender.call(drop, sent.name)
            self.held[index].remove(sent)
        receiver.call(receive, ours, name)
        self.held[to].append(Held(name, sent.model))

    def write(self, index: int, target: Held) -> None:
        value = self.random.randrange(100)
        self.processes[index].call(write, target.name, value)
        target.model.fill_(value)

    def drop(self, index: int, gone: Held) -> None:
        self.processes[index].call(drop, gone.name)
        self.held[index].remove(gone)

    def check(self) -> None:
        for process, held in zip(self.processes, self.held, strict=True):
            for tensor in held:
                assert process.call(read, tensor.name) == tensor.model.tolist(), tensor.name


@pytest.fixture(scope="module")
def processes() -> Iterator[list[OtherProcess]]:
    processes = [OtherProcess(), OtherProcess()]
    yield processes
    for process in processes:
        process.end()


@pytest.fixture
def others(processes: list[OtherProcess]) -> list[OtherProcess]:
    """Two processes, which the test may kill."""
    processes[:] = [process if process.process.is_alive() else OtherProcess() for process in processes]
    for process in processes:
        process.call(forget)
    forget()
    return processes


@pytest.fixture(autouse=True)
def nothing_in_shared_memory() -> Iterator[None]:
    """Nothing of this process is left in /dev/shm. Names there begin with torch_<pid> or hold the pid."""
    before = set(os.listdir("/dev/shm"))
    yield
    assert not [name for name in set(os.listdir("/dev/shm")) - before if f"_{os.getpid()}_" in name]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_process_sees_the_model(others, seed):
    exchange = Exchange(seed, [Here(), *others])
    before = [process.call(collected) for process in exchange.processes]
    for number in range(STEPS):
        exchange.step()
        if number % 50 == 0:
            exchange.check()
    exchange.check()
    for process in exchange.processes:
        process.call(forget)
    # In two rounds, because what one process lets go of makes another's memory free.
    _, after = ([process.call(collected) for process in exchange.processes] for _ in range(2))
    assert after == before


# ---- deaths


def take_all(pipe: Any, seed: int) -> None:
    """Receives until the process is killed, and holds the last few tensors and parts of them."""
    choice = random.Random(seed)
    for number in range(MESSAGES):
        x = pipe.recv()
        if x[0] != number:
            os._exit(1)  # its exit code is no signal's
        KEPT[f"{choice.randrange(3)}"] = x[: choice.randrange(1, 4)]
    signal.pause()


def send_all(pipe: Any, seed: int) -> None:
    choice = random.Random(seed)
    for number in range(MESSAGES):
        x = torch.full((choice.randrange(2, 5000),), float(number), device="vdev")
        pipe.send((number, x[1:]))
    signal.pause()


def wrong_ones(more: int) -> list[str]:
    return [name for name, x in KEPT.items() if not x.eq(int(name) + more).all()]


def kill_later(process: OtherProcess, choice: random.Random) -> threading.Timer:
    """Kills a process in the midst of what it does. Wherever that is, the test expects the same."""
    timer = threading.Timer(choice.random() * 0.1, os.kill, (process.process.pid, signal.SIGKILL))
    timer.start()
    return timer


@pytest.mark.parametrize("seed", SEEDS[:1])
def test_an_owner_dies_at_a_random_point(others, seed):
    """What was received stays, also where it was passed on, and later messages raise."""
    choice = random.Random(seed)
    third, owner = others
    before = collected()
    got: dict[int, torch.Tensor] = {}
    refused = 0
    try:
        ours, theirs = SPAWN.Pipe()
        owner.requests.put((send_all, (theirs, seed)))
        timer = None
        while True:
            if timer is None and len(got) > choice.randrange(5):
                timer = kill_later(owner, choice)
            try:
                if not ours.poll(0.1):
                    if not owner.process.is_alive() and not ours.poll(0):
                        break
                    continue
                number, x = ours.recv()
            except RuntimeError as error:
                assert "that owns the memory has ended" in str(error)
                refused += 1
                continue
            got[number] = x
            if choice.random() < 0.2:
                try:
                    third.call(keep, str(number), x)
                except RuntimeError as error:  # the third process opens the memory at its owner
                    assert "that owns the memory has ended" in str(error)
        timer.join()
        owner.process.join(TIMEOUT)
        assert owner.process.exitcode == -signal.SIGKILL
    finally:
        owner.end()
    assert list(got) == list(range(len(got))) and len(got) + refused <= MESSAGES
    for number, x in got.items():
        x += 1
        assert x.eq(number + 1).all()
    torch.vdev.synchronize()
    assert third.call(wrong_ones, 1) == []
    third.call(forget)
    x = None
    got.clear()
    assert collected() == before


@pytest.mark.parametrize("seed", SEEDS[:1])
def test_a_receiver_dies_at_a_random_point(others, seed):
    choice = random.Random(seed)
    receiver = others[0]
    try:
        before = collected()
        ours, theirs = SPAWN.Pipe()
        receiver.requests.put((take_all, (theirs, seed)))  # which never answers
        sent = []
        timer = kill_later(receiver, choice)
        for number in range(MESSAGES):
            x = torch.full((choice.randrange(4, 5000),), float(number), device="vdev")
            sent.append(bytes(ForkingPickler.dumps(x)))  # what send() writes
            ours.send_bytes(sent[-1])
            del x
        timer.join()
        receiver.process.join(TIMEOUT)
        assert receiver.process.exitcode == -signal.SIGKILL
    finally:
        receiver.end()
    # Messages that nobody receives keep their memory, so this process receives them.
    for message in sent:
        try:
            pickle.loads(message)
        except RuntimeError as error:
            assert "Was it received more than once" in str(error)
    assert collected() == before
