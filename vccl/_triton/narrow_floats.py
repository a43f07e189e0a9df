"""Converts floats that numpy does not have, which Triton's interpreter keeps as integers of their bits.

Arithmetic on them happens in float32, and each result is rounded to nearest even, as on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl

Array = np.ndarray[Any, Any]

_FP8 = {
    tl.float8e5: torch.float8_e5m2,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e4b8: torch.float8_e4m3fnuz,
    tl.float8e5b16: torch.float8_e5m2fnuz,
}
_SIGN_AND_EXPONENT = np.uint32(0x7F800000)


def is_narrow(dtype: Any) -> bool:
    """Returns whether numpy has no arithmetic for this dtype of Triton."""
    return dtype == tl.bfloat16 or dtype in _FP8


def widen(bits: Array, dtype: Any) -> Array:
    """Returns the values as float32, exactly."""
    if dtype == tl.bfloat16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    flat = torch.from_numpy(np.array(bits, dtype=np.uint8, order="C"))
    return flat.view(_FP8[dtype]).to(torch.float32).numpy()


def narrow(values: Array, dtype: Any, towards_zero: bool = False) -> Array:
    """Returns the bits of the values in the narrow format, rounded to nearest even or towards zero.

    A value that is too large for a format of eight bits becomes the largest one, as in Triton on GPUs.
    """
    values = np.asarray(values, dtype=np.float32)
    if dtype == tl.bfloat16:
        return _to_bfloat16(values, towards_zero)
    target = _FP8[dtype]
    largest = torch.finfo(target).max
    clipped = torch.from_numpy(np.array(values, order="C")).clamp(-largest, largest)  # keeps NaN
    rounded = clipped.to(target)
    if towards_zero:
        too_large = rounded.to(torch.float32).abs() > clipped.abs()
        rounded = (rounded.view(torch.uint8) - too_large.to(torch.uint8)).view(target)
    return rounded.view(torch.uint8).numpy()


def _to_bfloat16(values: Array, towards_zero: bool) -> Array:
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(values.shape)
    if towards_zero:
        rounded = bits >> np.uint32(16)
    else:
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # The carry must not turn a NaN into an infinity or a number, nor may the lost bits be all that it has.
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > _SIGN_AND_EXPONENT
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(is_nan, quiet, rounded).astype(np.uint16)


def half_towards_zero(values: Array) -> Array:
    """Returns float32 values as float16, rounded towards zero."""
    nearest = values.astype(np.float16)
    too_large = np.abs(nearest.astype(np.float32)) > np.abs(values)
    return np.where(too_large, np.nextafter(nearest, np.float16(0)), nearest).astype(np.float16)
