"""The functions by which ``torch.multiprocessing`` sends CUDA's tensors to other processes.

They hand torch the message of vccl (csrc_device/runtime/process_sharing.hpp) in the place of CUDA's handles.
torch's own reducers pass it on. It travels as the handle of the counter, which torch keeps with the tensor.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing import reductions

from vccl import _C
from vccl._cards.process_sharing import order_of, receive_storage

Handles = tuple[int, bytes | None, int, int, Any, int, bytes, bool]


def _share_cuda_(self: torch.UntypedStorage, *args: object) -> Handles:
    """Returns (card, handle, bytes, offset, message, counter offset, event handle, whether to wait)."""
    message = _C._share_storage(self)
    memory, size, offset, _generation, slot = message
    # torch takes a storage without a handle for an empty one. There is no event, because sending waits for
    # the card. In its place goes what the receiver's race detector has to know.
    return (self.device.index, memory if size else None, size, offset, message, slot, order_of(self), False)


def _new_shared_cuda(
    cls: type,
    device: int,
    handle: bytes | None,
    size: int,
    offset: int,
    message: Any,
    counter_offset: int,
    event: bytes,
    must_wait: bool,
) -> torch.UntypedStorage:
    return receive_storage(message, event)


def _release_ipc_counter_cuda(
    cls: type, message: Any, counter_offset: int, device: int | None = None
) -> None:
    _C._decline_storage(message)


# The arguments of torch's rebuild_cuda_tensor, by number.
_CARD, _HANDLE, _MESSAGE = 6, 7, 11


def with_card_of_empty(rebuild: Callable[..., torch.Tensor], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns what torch's ``reduce_tensor`` has returned, but with a function of its own for empty tensors.

    torch makes an empty tensor on the card with the sender's number, which may be another card, or none.
    """
    return rebuild if arguments[_HANDLE] is not None else rebuild_empty_tensor, arguments


def rebuild_empty_tensor(*arguments: Any) -> torch.Tensor:
    """Does what torch's ``rebuild_cuda_tensor`` does, on the card that the message names.

    Raises:
        RuntimeError: this process does not see the card.
    """
    torch.cuda._lazy_init()
    storage = _C._receive_storage(arguments[_MESSAGE])
    changed = list(arguments)
    changed[_CARD] = storage.device.index
    rebuild: Callable[..., torch.Tensor] = reductions.rebuild_cuda_tensor
    return rebuild(*changed)
