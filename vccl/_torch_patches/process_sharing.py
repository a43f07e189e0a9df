"""Lets torch.multiprocessing send tensors of cards, and tells the reader of a queue of one that cannot go.

Torch has ways to share the memory of the CPU and of CUDA's devices, and refuses any other device. What it
registers with ``ForkingPickler`` is replaced for tensors and storages on cards.

A queue pickles in a thread of its own. An error there is printed and the item dropped, and the reader waits
for ever. If a card's tensor cannot be sent, the reader's ``get`` raises the error instead.
"""

import threading
from collections.abc import Callable
from multiprocessing import queues
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from vccl._torch_patches.registry import Patch
from vccl.vdev import process_sharing

PATCH = Patch(
    __name__,
    without="putting a card's tensor into a queue for another process loses it, and the reader waits",
    until="torch asks a device how its memory is shared, and a queue tells its reader of errors",
    upstream=("python/cpython#74594",),
)
PATCH.relies_on("torch.multiprocessing.reductions:reduce_tensor", "(tensor)")
PATCH.relies_on("torch.multiprocessing.reductions:reduce_storage", "(storage)")

_Reduce = Callable[[Any], Any]


class _Thread(threading.local):
    """Tells of the calling thread whether it pickles for a queue whose errors nobody would see."""

    feeds_queue = False


_thread = _Thread()

# Type checkers do not know its private attributes.
_Pickler: Any = ForkingPickler


def _shares(tensor: torch.Tensor) -> bool:
    """Returns whether a card's tensor is sent as its memory. Torch takes others apart, or raises for them."""
    is_leaf = tensor.is_leaf or not tensor.requires_grad
    return tensor.layout == torch.strided and not tensor.is_nested and is_leaf


def _for_cards(on_card: _Reduce, elsewhere: _Reduce) -> _Reduce:
    """Returns a reducer that calls `on_card` for what lies on a card."""

    def reduce(found: Any) -> Any:
        if found.device.type != "vdev":
            return elsewhere(found)
        try:
            return on_card(found)
        except Exception as error:
            if not _thread.feeds_queue:
                raise
            return _fail, (f"the sender could not put a card's tensor into the queue: {error}",)

    return reduce


def _fail(text: str) -> None:
    """Is called in the process that unpickles what could not be sent."""
    raise RuntimeError(text)


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    if _shares(tensor):
        return process_sharing.reduce_tensor(tensor)
    return reductions.reduce_tensor(tensor)


@PATCH.action
def _register_reducers() -> None:
    on_card: dict[_Reduce, _Reduce] = {
        reductions.reduce_tensor: _reduce_tensor,
        reductions.reduce_storage: process_sharing.reduce_storage,
    }
    for kind, reducer in list(_Pickler._extra_reducers.items()):
        if reducer in on_card:
            ForkingPickler.register(kind, _for_cards(on_card[reducer], reducer))


@PATCH.replaces(
    "multiprocessing.queues:Queue._feed",
    "(buffer, notempty, send_bytes, writelock, reader_close, writer_close, ignore_epipe, onerror, queue_sem)",
)
def _feed(original: Callable[..., None], *args: Any) -> None:
    # A queue with a handler of its own, such as that of a process pool, tells its caller of the error.
    _thread.feeds_queue = args[-2] is queues.Queue._on_queue_feeder_error  # type: ignore[attr-defined]
    original(*args)
