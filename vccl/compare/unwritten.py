"""Memory that nobody has written yet, whose elements mean nothing.

FlexAttention's backward pass copies such memory, and writes the copy afterwards. Two sound runs differ there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from vccl.compare.operators import tensors_in, written_arguments

_MAKERS = ("aten::empty", "aten::new_empty")
# The positions of what these operators copy. They read and write whole tensors, and change nothing but dtype,
# device and strides.
_COPIES = {"aten::clone": 0, "aten::_to_copy": 0, "aten::copy_": 1}


class Unwritten:
    """Follows through a run which storages no operator has written."""

    def __init__(self) -> None:
        # The reference keeps a storage's address from being given to another one.
        self._storages: dict[int, StorageWeakRef] = {}

    def is_copied_by(self, function: Any, args: tuple) -> bool:
        """Returns whether a call copies such memory and does nothing else. Ask before the call."""
        position = _COPIES.get(function.name())
        return position is not None and len(args) > position and self._has(args[position])

    def note(self, function: Any, args: tuple, kwargs: dict, output: Any, copied: bool) -> None:
        """Notes what a call has made or written. ``copied`` is the answer from before the call."""
        name = function.name()
        if name.startswith(_MAKERS) or (copied and name != "aten::copy_"):
            for tensor in tensors_in(output):
                self._add(tensor)
        elif not copied and self._storages and not getattr(function, "is_view", False):
            # What is copied to a place that was written before may be a part of it: the rest is written.
            for tensor in tensors_in(output) + written_arguments(function, args, kwargs):
                self._storages.pop(_key(tensor), None)

    def _has(self, tensor: torch.Tensor) -> bool:
        reference = self._storages.get(_key(tensor))
        return reference is not None and not reference.expired()

    def _add(self, tensor: torch.Tensor) -> None:
        if _key(tensor) == 0:
            return
        self._storages = {key: ref for key, ref in self._storages.items() if not ref.expired()}
        self._storages[_key(tensor)] = StorageWeakRef(tensor.untyped_storage())


def _key(tensor: torch.Tensor) -> int:
    """Returns a number of the tensor's storage, or 0 if it has none of its own."""
    if tensor.layout != torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return 0
    return 0 if tensor.is_nested else tensor.untyped_storage()._cdata
