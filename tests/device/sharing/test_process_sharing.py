"""Tensors of cards that torch.multiprocessing sends: they lie in the same memory in both processes."""

import collections
import copy
import dataclasses
import io
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import queues
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from other_process import KEPT, SPAWN, TIMEOUT, OtherProcess, fill, forget, keep, kept
from torch.multiprocessing import queue as torch_queues
from torch.multiprocessing import reductions
from torch.utils.data import DataLoader, Dataset

from vccl import _C

NO_LEAF = "Cowardly refusing to serialize non-leaf tensor"
BAD_FORK = "in forked subprocess"
ENDED = r"cannot be received: the process \d+ that owns it has ended"


@pytest.fixture(scope="module")
def other() -> Iterator[OtherProcess]:
    process = OtherProcess()
    yield process
    process.end()


@pytest.fixture
def mortal() -> Iterator[OtherProcess]:
    """A process that the test may kill."""
    process = OtherProcess()
    yield process
    process.end()


@dataclasses.dataclass
class Batch:
    inputs: torch.Tensor


class Reduced:
    """Has its own way of pickling."""

    def __init__(self, inputs: torch.Tensor) -> None:
        self.inputs = inputs

    def __reduce__(self) -> tuple:
        return Reduced, (self.inputs,)


# ---- what arrives


def views() -> dict[str, torch.Tensor]:
    x = torch.arange(24.0, device="vdev").reshape(4, 6)
    z = torch.randn(3, dtype=torch.complex64, device="vdev")
    return {
        "whole": x,
        "part": x[1:3, 2:5],
        "transposed": x.t(),
        "steps": x[::2, ::3],
        "expanded": x[:, :1].expand(4, 7),
        "scalar": x[2, 3],
        "empty": torch.empty(0, 3, device="vdev:1"),
        "empty view": x[4:],
        "leaf": torch.ones(3, device="vdev", requires_grad=True),
        "parameter": torch.nn.Parameter(x[0]),
        "frozen": torch.nn.Parameter(torch.ones(2, device="vdev"), requires_grad=False),
        "bfloat16": x.bfloat16(),
        "bool": x > 3,
        "other card": torch.full((5,), 7, device="vdev:2"),
        "conjugated": z.conj(),
        "negated": z.conj().imag,
        "sparse": torch.eye(3, device="vdev").to_sparse(),
    }


def describe(tensors: dict[str, torch.Tensor]) -> dict[str, tuple]:
    return {
        name: (
            type(x),
            x.dtype,
            str(x.device),
            x.size(),
            x.is_sparse or (x.stride(), x.storage_offset(), x.untyped_storage().nbytes()),
            (x.requires_grad, x.is_leaf, x.is_conj(), x.is_neg()),
            x.detach().to_dense().tolist() if x.is_sparse else x.tolist(),
        )
        for name, x in tensors.items()
    }


def test_views_and_kinds_of_tensors(other):
    sent = views()
    assert other.call(describe, sent) == describe(sent)


def typed_storage(x: torch.Tensor) -> torch.TypedStorage:
    return torch.TypedStorage(wrap_storage=x.untyped_storage(), dtype=x.dtype, _internal=True)


def inputs_of(forms: dict[str, Any]) -> dict[str, list]:
    def inputs(form: Any) -> list:
        if isinstance(form, torch.UntypedStorage):
            return torch.empty(0, dtype=torch.float32, device=form.device).set_(form).tolist()
        if isinstance(form, torch.storage.TypedStorage):
            return inputs(form._untyped_storage)
        return getattr(form, "inputs", form).tolist()

    found = {name: inputs(form) for name, form in forms.items() if name != "module"}
    module = forms["module"]
    found["module"] = module(torch.ones(1, device="vdev")).tolist()
    return found


def test_containers_storages_and_modules(other):
    x = torch.arange(3.0, device="vdev")
    forms = {
        "storage": x.untyped_storage(),
        "typed storage": typed_storage(x),
        "dataclass": Batch(x),
        "own way": Reduced(x),
        "module": torch.nn.Linear(1, 2).to("vdev"),
    }
    assert other.call(inputs_of, forms) == inputs_of(forms)
    deque = collections.deque([x])
    assert other.call(collections.deque.pop, deque).data_ptr() == x.data_ptr()
    state = forms["module"].state_dict()
    returned = other.call(dict, state)
    assert {name: x.data_ptr() for name, x in returned.items()} == {
        name: x.data_ptr() for name, x in state.items()
    }


@pytest.mark.parametrize(
    "kind",
    [queues.Queue, torch_queues.Queue, queues.JoinableQueue, queues.SimpleQueue, torch_queues.SimpleQueue],
    ids=lambda kind: f"{kind.__module__}.{kind.__name__}",
)
def test_every_queue(kind):
    queue = kind(ctx=SPAWN)
    x = torch.arange(3, device="vdev")
    queue.put({"x": [x]})
    assert queue.get()["x"][0].data_ptr() == x.data_ptr()


def test_pipes():
    ours, theirs = SPAWN.Pipe()
    x = torch.arange(3, device="vdev")
    ours.send(x[1:])
    assert theirs.recv().data_ptr() == x[1:].data_ptr()


def rebuilt(pickled: bytes) -> list:
    function, arguments = pickle.loads(pickled)
    return function(*arguments).tolist()


def test_frameworks_that_send_the_values_themselves(other):
    x = torch.arange(6, device="vdev").reshape(2, 3)
    assert other.call(rebuilt, pickle.dumps(reductions.reduce_tensor(x.t()))) == x.t().tolist()


def test_other_ways_of_pickling_copy():
    x = torch.arange(3, device="vdev")
    file = io.BytesIO()
    torch.save({"x": x}, file)
    file.seek(0)
    for copied in (torch.load(file)["x"], pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert copied.device == x.device
        assert copied.tolist() == [0, 1, 2]
        assert copied.data_ptr() != x.data_ptr()


# ---- one memory


def storages(name: str, again: torch.Tensor) -> list[bool]:
    first, second = KEPT[name]
    return [first.untyped_storage()._cdata == found.untyped_storage()._cdata for found in (second, again)]


def test_both_sides_write_to_one_memory(other):
    x = torch.zeros(4, 4, device="vdev")
    other.call(keep, "views", [x[0], x[:, 1]])
    x[0, 1] = 5
    row, column = other.call(kept, "views")
    assert row.tolist() == [0, 5, 0, 0]
    assert column.tolist() == [5, 0, 0, 0]
    # Several tensors of one storage, and a later message, share one storage there; the owner has its own.
    assert other.call(storages, "views", x.t()) == [True, True]
    assert row.untyped_storage()._cdata == x.untyped_storage()._cdata
    other.call(keep, "whole", x)
    other.call(fill, "whole", 3)
    assert x.tolist() == [[3] * 4] * 4
    other.call(forget)


def test_resized_storages(other):
    x = torch.ones(4, device="vdev")
    with pytest.raises(RuntimeError, match="not resizable"):
        other.call(torch.Tensor.resize_, x, (100,))
    other.call(keep, "x", x)
    # The owner's storage has other memory now, and what comes back is in the memory that was sent.
    x.resize_(1000).zero_()
    sent = other.call(kept, "x")
    assert sent.data_ptr() != x.data_ptr()
    assert sent.tolist() == [1] * 4
    other.call(fill, "x", 2)
    assert sent.tolist() == [2] * 4
    assert x.sum() == 0
    other.call(forget)


def copied(x: torch.Tensor) -> list:
    """Uses a received tensor in the ways that depend on where its memory is."""
    x.record_stream(torch.vdev.Stream())
    pinned = torch.empty(x.shape, pin_memory=True)
    pinned.copy_(x, non_blocking=True)
    other_card = x.to("vdev:1")
    torch.vdev.synchronize()
    same = torch.from_dlpack(x)
    return [x.tolist(), pinned.tolist(), other_card.tolist(), same.tolist(), x.clone().tolist()]


def test_what_a_receiver_does_with_the_memory(other):
    x = torch.arange(3.0, device="vdev")
    assert other.call(copied, x) == [[0, 1, 2]] * 5


def test_passing_on_to_a_third_process(other, mortal):
    x = torch.zeros(3, device="vdev")
    other.call(keep, "x", x)
    ours, theirs = SPAWN.Pipe()
    other.call(send, theirs, "x")
    mortal.call(receive, ours, "x")
    mortal.call(fill, "x", 4)
    assert x.tolist() == [4, 4, 4]
    other.call(forget)


def send(pipe: Any, name: str) -> None:
    pipe.send(KEPT[name])


def receive(pipe: Any, name: str) -> None:
    assert pipe.poll(TIMEOUT)
    KEPT[name] = pipe.recv()


# ---- lifetime


def figures() -> tuple[int, int]:
    return torch.vdev.memory_allocated(), torch.vdev.memory_reserved()


def left_open() -> tuple[int, int, int]:
    """Returns how many descriptors and threads this process has, and how many cards' memories it maps."""
    with open("/proc/self/maps") as maps:
        mapped = sum("/memfd:vdev:" in line for line in maps)
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), mapped


def test_memory_is_kept_until_the_receiver_has_let_go(other):
    other.call(forget)
    torch.vdev.ipc_collect()
    theirs, open_before = other.call(figures), other.call(left_open)
    before = torch.vdev.memory_allocated()
    x = torch.full((1000,), 2.0, device="vdev")
    with_x = torch.vdev.memory_allocated()
    other.call(keep, "x", x)
    assert other.call(figures) == theirs  # the receiver's figures do not count it
    del x
    torch.vdev.ipc_collect()
    assert torch.vdev.memory_allocated() == with_x
    fresh = torch.zeros(1000, device="vdev")
    assert other.call(kept, "x").tolist() == [2.0] * 1000
    other.call(forget)
    del fresh
    torch.vdev.ipc_collect()
    assert torch.vdev.memory_allocated() == before
    assert other.call(left_open) == open_before


def test_a_receiver_that_is_killed_lets_go(mortal):
    torch.vdev.ipc_collect()
    before = torch.vdev.memory_allocated()
    mortal.call(keep, "x", torch.ones(1000, device="vdev"))
    torch.vdev.ipc_collect()
    assert torch.vdev.memory_allocated() > before
    os.kill(mortal.process.pid, signal.SIGKILL)
    mortal.process.join(TIMEOUT)
    torch.vdev.ipc_collect()
    assert torch.vdev.memory_allocated() == before


def make(value: float) -> torch.Tensor:
    return torch.full((3,), value, device="vdev")


def send_new(pipe: Any) -> None:
    for value in (5, 6):
        pipe.send(make(value))


def test_a_sender_that_is_killed(mortal):
    mapped = left_open()[2]
    x = mortal.call(make, 3)
    ours, theirs = SPAWN.Pipe()
    mortal.call(send_new, theirs)
    os.kill(mortal.process.pid, signal.SIGKILL)
    mortal.process.join(TIMEOUT)
    x += 1
    assert x.tolist() == [4, 4, 4]
    # Its memory is here as long as something of it is used.
    assert ours.recv().tolist() == [5, 5, 5]
    del x
    assert left_open()[2] == mapped
    with pytest.raises(RuntimeError, match=ENDED):
        ours.recv()


# ---- streams


def test_what_is_queued_is_done_first(gate):
    side = torch.vdev.Stream()
    x = torch.zeros(3, device="vdev")
    ones = torch.ones(3).pin_memory()
    gate.close(side)
    with torch.vdev.stream(side):
        x.copy_(ones, non_blocking=True)
    found = []

    def share() -> None:  # as the thread of a queue does
        _C._decline_storage(_C._share_storage(x.untyped_storage()))
        found.append(side.query())

    thread = threading.Thread(target=share)
    thread.start()
    thread.join(0.1)  # gives a call that does not wait the time to return too early
    gate.open()
    thread.join(TIMEOUT)
    assert found == [True]


# ---- loaders, pools and arguments


class OnCard(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), index, device="vdev:1")


def test_workers_of_a_data_loader():
    loader = DataLoader(
        OnCard(), batch_size=2, num_workers=1, multiprocessing_context="spawn", timeout=TIMEOUT
    )
    batches = list(loader)
    assert [str(batch.device) for batch in batches] == ["vdev:1"] * 4
    assert [batch[:, 0].tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x.clone().requires_grad_() * 2


def test_a_pool_of_processes():
    x = torch.ones(3, device="vdev")
    with ProcessPoolExecutor(1, SPAWN) as pool:
        assert pool.submit(doubled, x).result(TIMEOUT).tolist() == [2, 2, 2]
        with pytest.raises(RuntimeError, match=NO_LEAF):
            pool.submit(doubled, x.clone().requires_grad_() * 2).result(TIMEOUT)
        with pytest.raises(RuntimeError, match=NO_LEAF):
            pool.submit(scaled, x).result(TIMEOUT)


def add_rank(rank: int, x: torch.Tensor) -> None:
    x[rank] += rank + 1


def test_arguments_of_processes():
    x = torch.zeros(2, device="vdev")
    mp.spawn(add_rank, args=(x,), nprocs=2)
    assert x.tolist() == [1, 2]


# ---- what cannot be


@pytest.mark.parametrize("kind", [queues.Queue, queues.JoinableQueue])
def test_the_reader_of_a_queue_gets_the_error(kind):
    queue = kind(2, ctx=SPAWN)
    x = torch.ones(3, device="vdev", requires_grad=True) * 2
    for _ in range(5):  # more than the queue holds: the places are given back
        queue.put(Reduced(x))
        with pytest.raises(RuntimeError, match=f"could not put a card's tensor into the queue: {NO_LEAF}"):
            queue.get(timeout=TIMEOUT)
    queue.put(1)
    assert queue.get(timeout=TIMEOUT) == 1


def test_pipes_and_arguments_raise_in_the_caller():
    x = torch.ones(3, device="vdev", requires_grad=True) * 2
    ours, _ = SPAWN.Pipe()
    with pytest.raises(RuntimeError, match=NO_LEAF):
        ours.send([x])
    with pytest.raises(RuntimeError, match=NO_LEAF):
        SPAWN.Process(target=print, args=(x,)).start()


def test_a_forked_child_cannot_use_what_it_inherited():
    ours, theirs = SPAWN.Pipe()
    x = torch.ones(3, device="vdev")
    ours.send(x)
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (theirs.recv, lambda: ours.send(x)):
            try:
                use()
            except RuntimeError as error:
                refused += BAD_FORK in str(error)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def test_other_cards_are_visible_to_the_receiver(monkeypatch):
    monkeypatch.setenv("VDEV_VISIBLE_DEVICES", "3,2")
    process = OtherProcess()
    try:
        sent = {"x": torch.ones(2, device="vdev:2"), "none": make(0).to("vdev:3")[:0]}
        found = process.call(describe, sent)
        assert [found[name][2] for name in ("x", "none")] == ["vdev:1", "vdev:0"]
        assert found["x"][-1] == [1, 1]
        for x in (make(1), torch.empty(0, device="vdev")):
            with pytest.raises(
                RuntimeError, match=r"on the physical card 0, and this process sees the cards 3, 2 \(VDEV_"
            ):
                process.call(describe, {"x": x})
    finally:
        process.end()


def test_other_messages_are_refused():
    message = _C._share_storage(make(1).untyped_storage())
    with pytest.raises(RuntimeError, match="its bytes name nothing of a card"):
        _C._receive_storage((b"", *message[1:]))
    with pytest.raises(RuntimeError, match="does not name a block that this process shares"):
        _C._receive_storage((message[0], 1 << 40, *message[2:]))
    _C._decline_storage(message)
    with pytest.raises(RuntimeError, match="Was it received more than once"):
        _C._receive_storage(message)
