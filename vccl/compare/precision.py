"""How exact the elements of a tensor can be at best, given the dtypes they have gone through.

A ``float32`` tensor that was made of a ``bfloat16`` one carries the rounding of ``bfloat16``, so two sound
runs differ by as much there. This is so within autocast, and where an operator computes wider than its
arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from vccl.compare.operators import tensors_in, written_arguments
from vccl.compare.parts import parts_of


def narrowest(dtypes: Iterable[torch.dtype | None]) -> torch.dtype | None:
    """Returns the least exact of some dtypes, or None if none of them has fractions."""
    inexact = [dtype for dtype in dtypes if dtype is not None and _is_inexact(dtype)]
    return max(inexact, key=lambda dtype: torch.finfo(dtype).eps, default=None)


def narrowest_of(tree: Any) -> torch.dtype | None:
    """Returns the least exact dtype among tensors."""
    return narrowest(tensor.dtype for tensor in tensors_in(tree))


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


class Precisions:
    """Follows through a run what the elements of each tensor have been rounded to.

    Memory is known by its storage, because autograd gives other tensors for the same memory in the backward
    pass. A storage that takes the place of a freed one is written by an operator first, which notes it anew.
    """

    def __init__(self) -> None:
        self._of_storage: dict[int, torch.dtype] = {}

    def of(self, tree: Any) -> torch.dtype | None:
        """Returns the narrowest dtype that tensors have, or have gone through."""
        tensors = tensors_in(tree)
        noted = [self._of_storage.get(key) for tensor in tensors for key in _storages(tensor)]
        return narrowest([*noted, *(tensor.dtype for tensor in tensors)])

    def note(self, function: Any, args: tuple, kwargs: dict, output: Any) -> torch.dtype | None:
        """Notes what an operator has written, and returns the narrowest dtype behind its results."""
        precision = narrowest([self.of((args, kwargs)), narrowest_of(output)])
        for tensor in tensors_in(output) + written_arguments(function, args, kwargs):
            for key in _storages(tensor):
                if precision is not None and _is_inexact(tensor.dtype) and tensor.dtype != precision:
                    self._of_storage[key] = precision
                else:
                    self._of_storage.pop(key, None)
        return precision


def _storages(tensor: torch.Tensor) -> list[int]:
    if tensor.layout == torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return [tensor.untyped_storage()._cdata]
    if tensor.layout in (torch.strided, torch.jagged):
        return [part.untyped_storage()._cdata for part in parts_of(tensor)]
    return []  # sparse tensors have no storage of their own
