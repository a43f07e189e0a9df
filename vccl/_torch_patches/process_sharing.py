"""Refuses to send a card's tensor to another process, where the caller hears of it.

A process cannot map the card of another one, so torch.multiprocessing cannot send it a card's tensor. Torch
raises for it while the tensor is pickled. A queue pickles in a thread of its own, where the error is
printed and the item dropped, and the reader waits for ever.

This patch makes ``put`` search what it is given, and raise. An object may have its own way of pickling, which
hides a tensor from the search. Such an item makes the reader's ``get`` raise.
"""

import collections
import copyreg
import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import queues
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from vccl import _C
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="putting a card's tensor into a queue for another process loses it, and the reader waits",
    until="the memory of a card can be shared between processes",
    upstream=("python/cpython#74594",),
)
PATCH.relies_on("torch.multiprocessing.reductions:reduce_tensor", "(tensor)")
PATCH.relies_on("torch.multiprocessing.reductions:reduce_storage", "(storage)")

# Type checkers do not know the private attributes of these two.
_Pickler: Any = ForkingPickler
_Queue: Any = queues.Queue

# How many objects `put` looks at. A batch has fewer. If an item has more, the reader may get the error.
_MOST_OBJECTS = 10_000
_LEAVES = (str, bytes, bytearray, int, float, complex, bool, type(None), type)
_CONTAINERS = (list, tuple, set, frozenset, collections.deque)


class CardTensorNotShared(RuntimeError):
    """Somebody has tried to send a card's tensor to another process."""


def refusal(device: torch.device) -> CardTensorNotShared:
    """Returns the error for something that lies on `device`."""
    return CardTensorNotShared(
        f"a tensor on {device} cannot be sent to another process: sharing the memory of a card between "
        "processes does not work yet. Send a copy in CPU memory (tensor.cpu()), which the receiver moves to "
        "its own card; between the ranks of a process group, use torch.distributed.send() and recv()"
    )


def check(item: object) -> None:
    """Raises CardTensorNotShared if `item` is a card's tensor or holds one, in containers or attributes."""
    if not _C.is_initialized():  # this process has used no card, so it has no such tensors
        return
    seen: set[int] = set()
    left: list[Any] = [item]
    while left and len(seen) < _MOST_OBJECTS:
        found = left.pop()
        if isinstance(found, _LEAVES) or id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)):
            if found.device.type == "vdev":
                raise refusal(found.device)
        else:
            left.extend(_parts(found))


def _parts(found: object) -> Iterable[Any]:
    """Returns what is pickled together with an object, as far as that is known without pickling it."""
    if isinstance(found, Mapping):
        return [*found.keys(), *found.values()]
    if isinstance(found, _CONTAINERS):
        return found
    if isinstance(found, torch.nn.Module):
        return [*found.parameters(), *found.buffers()]
    kind = type(found)
    pickles_itself = (
        kind.__reduce_ex__ is not object.__reduce_ex__
        or kind.__reduce__ is not object.__reduce__
        or kind.__getstate__ is not object.__getstate__
        or kind in copyreg.dispatch_table
        or kind in _Pickler._extra_reducers
    )
    if pickles_itself:
        return ()
    if dataclasses.is_dataclass(found):
        return [getattr(found, field.name, None) for field in dataclasses.fields(found)]
    return getattr(found, "__dict__", {}).values()


def refuse_cards(reduce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a reducer of torch.multiprocessing that raises for what lies on a card."""

    def reduce_unless_on_card(found: Any) -> Any:
        if found.device.type == "vdev":
            raise refusal(found.device)
        return reduce(found)

    return reduce_unless_on_card


def checked(item: object) -> object:
    """Returns `item` if it may be put into a queue.

    Returns the error instead of the batch in a worker of a DataLoader. A worker puts a number and a batch
    into its queue, or a number and an error that the loader raises. An exception in the worker would end
    it, and the loader would not learn why.

    Raises:
        CardTensorNotShared: the item holds a card's tensor, and this process is no such worker.
    """
    try:
        check(item)
    except CardTensorNotShared:
        worker = sys.modules.get("torch.utils.data._utils.worker")
        info = worker.get_worker_info() if worker else None
        if info is None or not isinstance(item, tuple) or len(item) != 2:
            raise
        from torch._utils import ExceptionWrapper

        return item[0], ExceptionWrapper(where=f"in DataLoader worker process {info.id}")
    return item


class _Failure:
    """Makes the process that unpickles it raise CardTensorNotShared."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return _fail, (self.text,)


def _fail(text: str) -> None:
    raise CardTensorNotShared(text)


def tell_reader(queue: Any, error: CardTensorNotShared) -> None:
    """Sends the error in place of an item that could not be pickled. The thread of the queue calls it."""
    queue._sem.acquire()  # given back for the item that was dropped
    failure = ForkingPickler.dumps(_Failure(str(error)))
    with queue._wlock:
        queue._writer.send_bytes(failure)


@PATCH.action
def _wrap_reducers() -> None:
    for kind, reducer in list(_Pickler._extra_reducers.items()):
        if reducer in (reductions.reduce_tensor, reductions.reduce_storage):
            ForkingPickler.register(kind, refuse_cards(reducer))


@PATCH.replaces("multiprocessing.queues:Queue._on_queue_feeder_error", "(e, obj)", as_method=True)
def _on_queue_feeder_error(
    original: Callable[..., None], self: "queues.Queue[Any]", e: Exception, obj: object
) -> None:
    if isinstance(e, CardTensorNotShared):
        tell_reader(self, e)
    else:
        original(e, obj)


@PATCH.replaces("multiprocessing.queues:Queue.put", "(self, obj, block=..., timeout=...)")
@PATCH.replaces("multiprocessing.queues:JoinableQueue.put", "(self, obj, block=..., timeout=...)")
def _put(
    original: Callable[..., None], self: "queues.Queue[Any]", obj: object, *args: Any, **kwargs: Any
) -> None:
    kind: Any = type(self)
    # A subclass with its own handler, such as the queue of a process pool, tells of an error in its own way.
    if kind._on_queue_feeder_error is _Queue._on_queue_feeder_error:
        obj = checked(obj)
    return original(self, obj, *args, **kwargs)
