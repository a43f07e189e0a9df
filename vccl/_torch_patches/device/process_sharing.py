"""Lets torch.multiprocessing send tensors of cards, and tells the reader of a queue of one that cannot go.

Torch has ways to share the memory of the CPU and of CUDA's devices, and refuses any other device. Its
functions that say how a tensor and a storage are pickled are replaced for what lies on cards. Frameworks also
call ``reduce_tensor`` themselves, and send its result in their own way.

A queue pickles in a thread of its own. An error there is printed and the item dropped, and the reader waits
for ever. If a card's tensor cannot be sent, the reader's ``get`` raises the error instead.
"""

import threading
from collections.abc import Callable
from multiprocessing import queues
from typing import Any

import torch
from torch.multiprocessing import reductions

from vccl._cards import process_sharing
from vccl._device_type import device_type
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="putting a card's tensor into a queue for another process loses it, and the reader waits",
    until="torch asks a device how its memory is shared, and a queue tells its reader of errors",
    upstream=("python/cpython#74594",),
)
PATCH.relies_on("torch.multiprocessing.reductions:init_reductions", "()")

_Reduce = Callable[[Any], Any]


class _Thread(threading.local):
    """Tells of the calling thread whether it pickles for a queue whose errors nobody would see."""

    feeds_queue = False


_thread = _Thread()


def _tell_reader(reduce: _Reduce, found: Any) -> Any:
    """Returns how something on a card is pickled: by `reduce`, or, if nobody would see its error, as that."""
    try:
        return reduce(found)
    except Exception as error:
        if not _thread.feeds_queue:
            raise
        return _fail, (f"the sender could not put a card's tensor into the queue: {error}",)


def _fail(text: str) -> None:
    """Is called in the process that unpickles what could not be sent."""
    raise RuntimeError(text)


@PATCH.replaces("torch.multiprocessing.reductions:reduce_tensor", "(tensor)")
def _reduce_tensor(original: _Reduce, tensor: torch.Tensor) -> Any:
    if tensor.device.type != device_type():
        return original(tensor)
    # Torch takes other layouts apart, and raises for a tensor that needs a gradient and is no leaf.
    is_leaf = tensor.is_leaf or not tensor.requires_grad
    is_dense = tensor.layout == torch.strided and not tensor.is_nested
    if not is_leaf or not is_dense:
        return _tell_reader(original, tensor)
    # In pose torch's own form goes to the other process, since frameworks look at the arguments by their
    # number. It loses the bits of a lazy conjugation and negation.
    if device_type() == "cuda" and not tensor.is_conj() and not tensor.is_neg():
        from vccl._cards import cuda_handles

        return _tell_reader(lambda tensor: cuda_handles.with_card_of_empty(*original(tensor)), tensor)
    return _tell_reader(process_sharing.reduce_tensor, tensor)


@PATCH.replaces("torch.multiprocessing.reductions:reduce_storage", "(storage)")
def _reduce_storage(original: _Reduce, storage: torch.UntypedStorage) -> Any:
    if storage.device.type != device_type():
        return original(storage)
    return _tell_reader(process_sharing.reduce_storage, storage)


@PATCH.action
def _register() -> None:
    reductions.init_reductions()  # gives ForkingPickler the two functions


@PATCH.replaces(
    "multiprocessing.queues:Queue._feed",
    "(buffer, notempty, send_bytes, writelock, reader_close, writer_close, ignore_epipe, onerror, queue_sem)",
)
def _feed(original: Callable[..., None], *args: Any) -> None:
    # A queue with a handler of its own, such as that of a process pool, tells its caller of the error.
    _thread.feeds_queue = args[-2] is queues.Queue._on_queue_feeder_error  # type: ignore[attr-defined]
    original(*args)
