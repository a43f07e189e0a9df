"""Sends tensors of cards to other processes without a copy, through torch.multiprocessing.

A queue, a pipe and the arguments of a process pickle what they send with ``ForkingPickler``. For a card's
tensor this module gives it a message that names the memory, and the receiver makes a tensor over the same
memory, as with CUDA. ``vccl/_torch_patches/device/process_sharing.py`` registers the functions.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from vccl import _C
from vccl._device_type import device_type

# The owner's name, the bytes, the offset, and the generation and slot of the block (_C._share_storage).
Message = tuple[bytes, int, int, int, int]


def reduce_storage(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    """Returns how a card's storage is pickled for another process.

    Raises:
        RuntimeError: the memory was not handed out by the cards' allocator, a collective that should have
            written it has failed, or the process is a forked child that cannot use its parent's cards.
    """
    return receive_storage, (_C._share_storage(storage), order_of(storage))


def order_of(storage: torch.UntypedStorage) -> bytes:
    """Returns what the receiver's race detector has to know, or b"" while nobody looks for races."""
    return _C._races_share(storage, own_rank()) if _C._races_on() and storage.nbytes() else b""


def own_rank() -> int:
    """Returns this process's rank in its job, which launchers set in the environment, or -1."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() else -1


def receive_storage(message: Message, order: bytes) -> torch.UntypedStorage:
    """Returns the storage that a message names.

    Args:
        order: what the sender's race detector has said, or b"".

    Raises:
        RuntimeError: the owner of the memory has ended, belongs to another machine, user or pid namespace,
            or has a card that this process does not see.
    """
    torch.get_device_module(device_type())._lazy_init()
    storage = _C._receive_storage(message)
    if order:
        _C._races_receive(storage, order, own_rank())
    return storage


def reduce_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Returns how a dense tensor on a card is pickled for another process. Hooks are not sent.

    Raises:
        RuntimeError: what ``reduce_storage`` raises.
    """
    torch.utils.hooks.warn_if_has_hooks(tensor)
    shape = (tensor.storage_offset(), tensor.size(), tensor.stride())
    bits = (tensor.is_conj(), tensor.is_neg())
    storage = tensor.untyped_storage()
    message = (_C._share_storage(storage), order_of(storage))
    return receive_tensor, (type(tensor), tensor.dtype, message, shape, bits, tensor.requires_grad)


def receive_tensor(
    kind: type[torch.Tensor],
    dtype: torch.dtype,
    message: tuple[Message, bytes],
    shape: tuple[int, torch.Size, tuple[int, ...]],
    bits: tuple[bool, bool],
    requires_grad: bool,
) -> torch.Tensor:
    """Returns the tensor that ``reduce_tensor`` has described.

    Args:
        kind: ``torch.Tensor`` or ``torch.nn.Parameter``.
        message: the arguments of ``receive_storage``.
        shape: offset in elements, sizes and strides.
        bits: whether the tensor is lazily conjugated, and lazily negated.

    Raises:
        RuntimeError: what ``receive_storage`` raises.
    """
    storage = receive_storage(*message)
    tensor = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, *shape)
    is_conj, is_neg = bits
    if is_conj:
        tensor = tensor.conj()
    if is_neg:
        tensor = tensor._neg_view()
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def ipc_collect() -> None:
    """Makes memory that no other process uses any more free for use again.

    Memory that a program has sent to another process, and has freed itself, is kept until the receivers have
    freed it, too. The cards' allocators look for such memory before they take more from the card.
    """
    _C._collect_shared_blocks()
