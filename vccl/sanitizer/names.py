"""Finds what the program calls a tensor."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from types import FrameType

import torch

_MOST_FRAMES = 50


def of_tensor(address: int, shape: Sequence[int]) -> str | None:
    """Returns the name of a variable of the program's running functions that holds the tensor, or None.

    The innermost function comes first, and a variable of the same shape before a view of another shape.
    """
    if sys.gettrace() is not None:  # a debugger writes back what it finds in f_locals
        return None
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        if not any(part in frame.f_code.co_filename for part in ("/torch/", "/vccl/")):
            shapes = _shapes_at(frame, address)
            for name in shapes:
                if shapes[name] == list(shape):
                    return name
            if shapes:
                return next(iter(shapes))
        frame = frame.f_back
    return None


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether it is no wrapper, such as those that vmap() and grad() give to the function that they call."""
    return tensor.layout == torch.strided and torch._C._has_storage(tensor)


def _shapes_at(frame: FrameType, address: int) -> dict[str, list[int]]:
    """Returns the names of the frame's variables that hold a tensor at the address, with its shape."""
    values = frame.f_locals
    found = {}
    for name, value in values.items():
        # A tensor of another class may have no memory of its own, and asking it may call operators.
        if not isinstance(value, torch.Tensor) or type(value) not in (torch.Tensor, torch.nn.Parameter):
            continue
        if _has_memory(value) and torch._C.TensorBase.data_ptr(value) == address:
            found[name] = list(value.shape)
    # Before Python 3.13 the frame keeps this copy, and with it objects that the program has deleted.
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        values.clear()
    return found
