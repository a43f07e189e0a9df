"""tl.reduce and tl.associative_scan, with any function that combines two elements.

Both work in steps that halve or double the distance of the elements, so a function is called as often as the
length of a block has bits. The order of the elements is kept: the function must be associative, as on a GPU,
and need not commute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.language import standard
from triton.runtime.interpreter import TensorHandle, _get_np_dtype

from vccl._triton.narrow_floats import Array, is_narrow

Combine = Callable[..., Any]
# Sums and extrema have functions of numpy. Those of floats that numpy does not have take the general way.
_REDUCTIONS = {
    standard._sum_combine: np.add,
    standard._elementwise_max: np.fmax,
    standard._elementwise_min: np.fmin,
}
_SCANS = {standard._sum_combine: np.add, standard._prod_combine: np.multiply}


def _tensor(data: Array, dtype: Any) -> Any:
    scalar = dtype.scalar
    if data.ndim == 0:
        return tl.tensor(TensorHandle(data.reshape(1), scalar), scalar)
    return tl.tensor(TensorHandle(data, scalar), tl.block_type(scalar, list(data.shape)))


def _combine(function: Combine, left: list[Any], right: list[Any]) -> list[Any]:
    """Returns the arrays that the function makes of two blocks of elements."""
    result = function(*left, *right)
    tensors = result if isinstance(result, (tuple, tl.tuple)) else (result,)
    # The function may return wider numbers than it was given, which the elements of a block cannot be.
    return [
        tensor.handle.data.reshape(one.handle.data.shape).astype(one.handle.data.dtype)
        if tensor.dtype == one.dtype or not is_narrow(one.dtype)
        else tensor.to(one.dtype).handle.data
        for tensor, one in zip(tensors, left, strict=True)
    ]


def _blocks(input: Any) -> list[Any]:
    return list(input) if isinstance(input, (tuple, tl.tuple)) else [input]


def _known(table: dict[Any, Any], function: Any, blocks: list[Any]) -> Any:
    if len(blocks) > 1 or is_narrow(blocks[0].dtype):
        return None
    return table.get(getattr(function, "jit", function))


def reduce(input: Any, axis: Any, combine_fn: Combine, keep_dims: bool = False, **ignored: Any) -> Any:
    """Stands in for tl.reduce."""
    blocks = _blocks(input)
    axis = getattr(axis, "value", axis)
    arrays = [block.handle.data for block in blocks]
    dimensions = arrays[0].ndim
    if axis is None:
        arrays, along = [array.reshape(-1) for array in arrays], 0
    else:
        along = axis + dimensions if axis < 0 else axis
        if not 0 <= along < dimensions:
            raise ValueError(f"tl.reduce: axis {axis} is out of range for a block of shape {arrays[0].shape}")
    known = _known(_REDUCTIONS, combine_fn, blocks)
    if known is not None:
        if blocks[0].dtype.is_int() and known is not np.add:
            known = np.maximum if known is np.fmax else np.minimum
        dtype = _get_np_dtype(blocks[0].dtype)
        results = [known.reduce(arrays[0], axis=along, dtype=dtype)]
    else:
        results = _reduce_in_steps(arrays, along, blocks, combine_fn)
    if getattr(keep_dims, "value", keep_dims):
        shape = [1] * dimensions if axis is None else None
        results = [np.reshape(one, shape) if shape else np.expand_dims(one, along) for one in results]
    tensors = [_tensor(np.asarray(one), block.dtype) for one, block in zip(results, blocks, strict=True)]
    return tensors[0] if not isinstance(input, (tuple, tl.tuple)) else tuple(tensors)


def reduce_with_indices(
    input: Any, axis: Any, combine_fn: Combine, keep_dims: bool = False, **ignored: Any
) -> Any:
    """Stands in for what tl.argmax and its like call: reduces the elements together with their places."""
    data, along = input.handle.data, getattr(axis, "value", axis)
    shape = [1] * data.ndim
    shape[along] = -1
    places = np.arange(data.shape[along], dtype=np.int32).reshape(shape)
    indices = _tensor(np.broadcast_to(places, data.shape), tl.int32)
    return reduce((input, indices), along, combine_fn, keep_dims)


def _reduce_in_steps(arrays: list[Array], along: int, blocks: list[Any], function: Combine) -> list[Array]:
    arrays = [np.moveaxis(array, along, 0) for array in arrays]
    while arrays[0].shape[0] > 1:
        pairs = [
            [_tensor(array[first::2], block.dtype) for array, block in zip(arrays, blocks, strict=True)]
            for first in (0, 1)
        ]
        arrays = _combine(function, *pairs)
    return [array[0] for array in arrays]


def associative_scan(
    input: Any, axis: Any, combine_fn: Combine, reverse: bool = False, **ignored: Any
) -> Any:
    """Stands in for tl.associative_scan."""
    blocks = _blocks(input)
    axis, backwards = getattr(axis, "value", axis), bool(getattr(reverse, "value", reverse))
    dimensions = blocks[0].handle.data.ndim
    if not -dimensions <= axis < dimensions:
        raise ValueError(f"tl.associative_scan: axis {axis} is out of range for {dimensions} dimensions")
    arrays = [np.moveaxis(block.handle.data, axis, 0) for block in blocks]
    if backwards:
        arrays = [array[::-1] for array in arrays]
    known = _known(_SCANS, combine_fn, blocks)
    if known is not None:
        arrays = [known.accumulate(arrays[0], axis=0, dtype=_get_np_dtype(blocks[0].dtype))]
    else:
        arrays = _scan_in_steps(arrays, blocks, combine_fn)
    if backwards:
        arrays = [array[::-1] for array in arrays]
    moved = [np.ascontiguousarray(np.moveaxis(array, 0, axis)) for array in arrays]
    tensors = [_tensor(one, block.dtype) for one, block in zip(moved, blocks, strict=True)]
    return tensors[0] if not isinstance(input, (tuple, tl.tuple)) else tuple(tensors)


def _scan_in_steps(arrays: list[Array], blocks: list[Any], function: Combine) -> list[Array]:
    length, distance = arrays[0].shape[0], 1
    while distance < length:
        # Blocks keep their length, which must be a power of two. The first elements are complete already.
        before = [_tensor(np.roll(a, distance, axis=0), b.dtype) for a, b in zip(arrays, blocks, strict=True)]
        here = [_tensor(array, block.dtype) for array, block in zip(arrays, blocks, strict=True)]
        combined = _combine(function, before, here)
        arrays = [
            np.concatenate((array[:distance], new[distance:]))
            for array, new in zip(arrays, combined, strict=True)
        ]
        distance *= 2
    return arrays
