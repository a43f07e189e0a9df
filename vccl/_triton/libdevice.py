"""The functions of CUDA's libdevice, by numpy and torch.

Those that differ in rounding or speed only (``fast_expf``, ``fadd_rn``) are the plain ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Function = Callable[..., Any]


def _by_torch(function: Function) -> Function:
    def call(*arrays: Any) -> Any:
        tensors = [torch.from_numpy(np.array(array, order="C")) for array in np.broadcast_arrays(*arrays)]
        return function(*tensors).numpy()

    return call


def _round_half_away(x: Any) -> Any:
    return np.trunc(x + np.copysign(np.nextafter(x.dtype.type(0.5), x.dtype.type(0)), x))


def _leading_zeros(x: Any) -> Any:
    bits = x.dtype.itemsize * 8
    value, zeros = x.view(f"uint{bits}"), np.full(x.shape, bits, dtype=np.int32)
    for bit in range(bits):
        zeros[(value >> value.dtype.type(bit)) != 0] = bits - 1 - bit
    return zeros


def _gamma_of_one(x: float) -> float:
    try:
        return math.gamma(x)
    except OverflowError:
        return math.inf
    except ValueError:  # a pole
        return math.copysign(math.inf, x) if x == 0 else math.nan


_gamma = np.vectorize(_gamma_of_one, otypes=[np.float64])


def _exponent(x: Any) -> Any:
    return np.frexp(x)[1] - 1


_UNCHANGED = (
    "abs cbrt ceil copysign cos cosh exp exp2 expm1 fabs floor fmax fmin fmod hypot ldexp log log10 log1p "
    "log2 nextafter rint signbit sin sinh sqrt tan tanh trunc isnan isinf isfinite"
)
FUNCTIONS: dict[str, Function] = {
    **{name: getattr(np, name) for name in _UNCHANGED.split()},
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "pow": np.power,
    "powi": np.power,
    "scalbn": np.ldexp,
    "nearbyint": np.rint,
    "llrint": np.rint,
    "remainder": _by_torch(lambda x, y: x - y * torch.round(x / y)),
    "round": _round_half_away,
    "llround": _round_half_away,
    "exp10": lambda x: np.power(x.dtype.type(10), x),
    "rsqrt": lambda x: x.dtype.type(1) / np.sqrt(x),
    "rcbrt": lambda x: x.dtype.type(1) / np.cbrt(x),
    "rcp": lambda x: x.dtype.type(1) / x,
    "rhypot": lambda x, y: x.dtype.type(1) / np.hypot(x, y),
    "fdim": lambda x, y: np.maximum(x - y, x.dtype.type(0)),
    "fma": lambda x, y, z: x.astype(np.float64) * y + z,
    "fdividef": np.divide,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sinpi": lambda x: np.sin(np.pi * np.fmod(x, 2)),
    "cospi": lambda x: np.cos(np.pi * np.fmod(x, 2)),
    "saturate": lambda x: np.clip(np.nan_to_num(x, nan=0.0), 0, 1),
    "erf": _by_torch(torch.erf),
    "erfc": _by_torch(torch.erfc),
    "erfinv": _by_torch(torch.erfinv),
    "erfcx": _by_torch(torch.special.erfcx),
    "lgamma": _by_torch(torch.lgamma),
    "tgamma": _gamma,
    "normcdf": _by_torch(torch.special.ndtr),
    "normcdfinv": _by_torch(torch.special.ndtri),
    "j0": _by_torch(torch.special.bessel_j0),
    "j1": _by_torch(torch.special.bessel_j1),
    "y0": _by_torch(torch.special.bessel_y0),
    "y1": _by_torch(torch.special.bessel_y1),
    "cyl_bessel_i0": _by_torch(torch.special.i0),
    "cyl_bessel_i1": _by_torch(torch.special.i1),
    "finite": np.isfinite,
    "ilogb": _exponent,
    "logb": _exponent,
    "clz": _leading_zeros,
    "popc": lambda x: np.bitwise_count(x.view(f"uint{x.dtype.itemsize * 8}")),
    "mulhi": lambda x, y: (x.astype(np.int64) * y) >> 32,
    "umulhi": lambda x, y: (x.astype(np.uint64) * y) >> np.uint64(32),
    "float_as_int": lambda x: x.view(np.int32),
    "float_as_uint": lambda x: x.view(np.uint32),
    "int_as_float": lambda x: x.view(np.float32),
    "uint_as_float": lambda x: x.view(np.float32),
    "double_as_longlong": lambda x: x.view(np.int64),
    "longlong_as_double": lambda x: x.view(np.float64),
}

_ROUNDED = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}
_TO_INTEGER = re.compile(r"(?:float|double)2u?(?:int|ll)_(r[nzdu])")
_TO_FLOAT = re.compile(r"(?:u?(?:int|ll)2(?:float|double)|double2float)_rn")
_ARITHMETIC = re.compile(r"[fd]?(add|sub|mul|div|sqrt|rsqrt|rcp|fma)f?_rn")


def function(symbol: str) -> Function | None:
    """Returns the function for a symbol such as "__nv_tanhf", or None if there is none here."""
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    if match := _TO_INTEGER.fullmatch(name):
        return _ROUNDED[match[1]]
    if _TO_FLOAT.fullmatch(name):
        return np.array
    if match := _ARITHMETIC.fullmatch(name):
        return FUNCTIONS[match[1]]
    for known in (name, name.removesuffix("f"), name.removesuffix("d"), name.removesuffix("ll")):
        if known in FUNCTIONS:
            return FUNCTIONS[known]
    return None
