"""Tensors of a card that are sent to another process: refused where the program hears of it."""

import collections
import copy
import dataclasses
import io
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import queues

import pytest
import torch
from torch.multiprocessing import queue as torch_queues
from torch.utils.data import DataLoader, Dataset

SPAWN = multiprocessing.get_context("spawn")
QUEUES = [queues.Queue, torch_queues.Queue, queues.JoinableQueue]
SIMPLE_QUEUES = [queues.SimpleQueue, torch_queues.SimpleQueue]


def every(kinds: list[type]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")


refused = pytest.raises(
    RuntimeError, match=r"a tensor on vdev:0 cannot be sent to another process.*tensor\.cpu\(\)"
)


@dataclasses.dataclass
class Batch:
    inputs: torch.Tensor


class Plain:
    def __init__(self, inputs: torch.Tensor) -> None:
        self.inputs = inputs


class Reduced(Plain):
    """Its own way of pickling hides the tensor from who only looks at it."""

    def __reduce__(self) -> tuple:
        return Reduced, (self.inputs,)


class OnTheHost(Plain):
    def __getstate__(self) -> dict:
        return {"inputs": self.inputs.cpu()}


def in_every_form(x: torch.Tensor) -> list[object]:
    loop: list[object] = [x]
    loop.append(loop)
    return [
        x,
        x[1:],
        x.untyped_storage(),
        torch.nn.Parameter(x),
        torch.nn.Linear(1, 1).to(x.device),
        (1, [x]),
        {"a": {"b": x}},
        collections.deque([x]),
        Batch(x),
        Plain([x]),
        loop,
    ]


@every(QUEUES)
def test_put_raises_in_the_caller(kind):
    queue = kind(ctx=SPAWN)
    for form in in_every_form(torch.ones(3, device="vdev")):
        for put in (queue.put, queue.put_nowait):
            with refused:
                put(form)
    # Nothing of it is in the queue, and it goes on.
    queue.put({"x": torch.ones(3), "y": OnTheHost(torch.ones(3, device="vdev"))})
    received = queue.get(timeout=60)
    assert received["x"].tolist() == received["y"].inputs.tolist() == [1, 1, 1]
    assert queue.empty()


@every(QUEUES)
def test_what_put_does_not_find_raises_in_the_reader(kind):
    queue = kind(2, ctx=SPAWN)
    for _ in range(5):  # more than the queue holds: the places are given back
        queue.put(Reduced(torch.ones(3, device="vdev")))
        with refused:
            queue.get(timeout=60)
    queue.put(1)
    assert queue.get(timeout=60) == 1


@every(SIMPLE_QUEUES)
def test_pipes_and_simple_queues_raise(kind):
    x = torch.ones(3, device="vdev")
    simple = kind(ctx=SPAWN)
    ours, theirs = SPAWN.Pipe()
    for form in in_every_form(x):
        with refused:
            simple.put(form)
        with refused:
            ours.send(form)
    ours.send(x.cpu())
    assert theirs.recv().tolist() == [1, 1, 1]


def test_arguments_of_a_process():
    process = SPAWN.Process(target=print, args=(torch.ones(3, device="vdev"),))
    with refused:
        process.start()
    assert multiprocessing.active_children() == []


def on_the_card(number: int) -> object:
    return torch.full((2,), number, device="vdev") if number else "ready"


def test_a_pool_of_processes():
    """Its own queues tell the caller of what could not be pickled."""
    with ProcessPoolExecutor(1, SPAWN) as pool:
        assert pool.submit(on_the_card, 0).result(120) == "ready"
        with refused:
            pool.submit(print, torch.ones(3, device="vdev")).result(120)
        with refused:
            pool.submit(on_the_card, 1).result(120)
        assert pool.submit(on_the_card, 0).result(120) == "ready"


class OnCard(Dataset):
    """Its first items are on the CPU, the rest on a card."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), index, device="cpu" if index < 2 else "vdev")


def test_workers_of_a_data_loader():
    loader = DataLoader(OnCard(), batch_size=2, num_workers=1, multiprocessing_context="spawn", timeout=120)
    batches = iter(loader)
    assert next(batches).tolist() == [[0, 0], [1, 1]]
    with pytest.raises(RuntimeError, match=r"(?s)in DataLoader worker process 0.*a tensor on vdev:0 cannot"):
        next(batches)


def test_other_ways_of_pickling_work():
    x = torch.arange(3, device="vdev")
    file = io.BytesIO()
    torch.save({"x": x}, file)
    file.seek(0)
    for copied in (torch.load(file)["x"], pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert copied.device == x.device
        assert copied.tolist() == [0, 1, 2]


def test_without_the_change_the_item_is_lost():
    """What the change is there for. A queue that tells of it some day needs it no more."""
    queue = SPAWN.Queue()
    told = []
    queue._on_queue_feeder_error = lambda error, item: told.append(error)
    queues.Queue.put.__wrapped__(queue, torch.ones(3, device="vdev"))
    queue.close()
    queue.join_thread()
    assert len(told) == 1
