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


_COMPRESSED_ROWS = (torch.sparse_csr, torch.sparse_bsr)
_COMPRESSED_COLUMNS = (torch.sparse_csc, torch.sparse_bsc)


def _parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns the dense tensors that have its elements, and none for a wrapper.

    vmap() and grad() give wrappers to the function that they call. These are views, and no element is read.
    """
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in _COMPRESSED_ROWS:
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in _COMPRESSED_COLUMNS:
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,) if tensor.layout == torch.strided and torch._C._has_storage(tensor) else ()


def _shapes_at(frame: FrameType, address: int) -> dict[str, list[int]]:
    """Returns the names of the frame's variables that hold a tensor at the address, with its shape."""
    values = frame.f_locals
    found = {}
    for name, value in values.items():
        # A tensor of another class may have no memory of its own, and asking it may call operators.
        if not isinstance(value, torch.Tensor) or type(value) not in (torch.Tensor, torch.nn.Parameter):
            continue
        for part in _parts(value):
            if torch._C.TensorBase.data_ptr(part) == address:
                found[name] = [] if part.is_nested else list(part.shape)
    # Before Python 3.13 the frame keeps this copy, and with it objects that the program has deleted.
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        values.clear()
    return found
