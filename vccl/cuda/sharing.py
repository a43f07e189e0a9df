"""The functions by which ``torch.multiprocessing`` sends CUDA's tensors to other processes.

They hand torch the message of vccl (csrc_device/runtime/process_sharing.hpp) in the place of CUDA's handles.
torch's own reducers pass it on. It travels as the handle of the counter, which torch keeps with the tensor.
"""

from typing import Any

import torch

from vccl import _C

Handles = tuple[int, bytes | None, int, int, Any, int, bytes, bool]


def _share_cuda_(self: torch.UntypedStorage, *args: object) -> Handles:
    """Returns (card, handle, bytes, offset, message, counter offset, event handle, whether to wait)."""
    message = _C._share_storage(self)
    memory, size, offset, _generation, slot = message
    # torch takes a storage without a handle for an empty one. There is no event, because sending waits for
    # the card.
    return (self.device.index, memory if size else None, size, offset, message, slot, b"", False)


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
    return _C._receive_storage(message)


def _release_ipc_counter_cuda(
    cls: type, message: Any, counter_offset: int, device: int | None = None
) -> None:
    _C._decline_storage(message)
