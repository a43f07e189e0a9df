"""Counts the taking of a CPU tensor's address as a read of its memory.

What is done through the address is not seen: only operators are.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

_METHODS = ("numpy", "tolist", "data_ptr", "__array__", "__dlpack__", "__reduce_ex__")


@functools.cache
def install() -> None:
    """Puts the count into the methods of torch.Tensor. Further calls do nothing."""
    for name in _METHODS:
        setattr(torch.Tensor, name, _counting(name, getattr(torch.Tensor, name)))


def _counting(name: str, method: Any) -> Any:
    from vccl import _C

    @functools.wraps(method)
    def counting(self: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        # A tensor of another class may not be one for C++.
        if _C._races_on() and type(self) in (torch.Tensor, torch.nn.Parameter):
            _C._races_pointer_taken(self, f"Tensor.{name}")
        return method(self, *arguments, **named)

    return counting
