"""The operations of a kernel, where Triton's interpreter lacks them or differs from a GPU.

Triton's InterpreterBuilder does the rest with numpy. It computes with the bits of bfloat16 and float8, trusts
every pointer, and has no functions of libdevice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import triton.language as tl
from triton._C.libtriton import interpreter as native
from triton._C.libtriton import ir
from triton.runtime.interpreter import (
    InterpreterBuilder,
    InterpreterOptions,
    TensorHandle,
    _get_np_dtype,
)

from vccl._triton import libdevice
from vccl._triton.memory import KnownMemory, Memory
from vccl._triton.narrow_floats import Array, half_towards_zero, is_narrow, narrow, widen

# Two kernels on two streams may run in turns, so what reads and writes memory in two steps takes this lock.
_atomics = threading.Lock()
# How often in a row a program may fail to take a lock. Kernels on other streams release theirs meanwhile.
_MOST_FAILURES = 100_000

_INTEGERS = {
    "int8": (tl.int8, np.int8),
    "uint8": (tl.uint8, np.uint8),
    "int16": (tl.int16, np.int16),
    "uint16": (tl.uint16, np.uint16),
    "int32": (tl.int32, np.int32),
    "uint32": (tl.uint32, np.uint32),
    "int64": (tl.int64, np.int64),
    "uint64": (tl.uint64, np.uint64),
}


@dataclass(frozen=True)
class _Options(InterpreterOptions):
    """The interpreter's options, with a GPU's defaults: only debug mode looks for overflow."""

    sanitize_overflow: bool = False


def origin_of(handle: Any) -> Memory | None:
    """Returns the argument that a pointer was computed from, if that is known."""
    return getattr(handle, "origin", None)


def with_origin(handle: Any, origin: Memory | None) -> Any:
    """Notes which argument a pointer was computed from, and returns the pointer."""
    if origin is not None:
        handle.origin = origin
    return handle


class CardBuilder(InterpreterBuilder):
    """The builder of one launch. It belongs to one thread."""

    def __init__(self, memory: KnownMemory, debug: bool) -> None:
        super().__init__()
        self.options = _Options(debug=debug, sanitize_overflow=debug)
        self.grid_idx = (0, 0, 0)
        self._memory = memory
        self._failures = 0

    # ---- memory

    def _check(self, pointers: Any, mask: Array | None, verb: str) -> None:
        addresses = np.asarray(pointers.data, dtype=np.uint64)
        if mask is not None:
            addresses = addresses[np.broadcast_to(mask.astype(bool), addresses.shape)]
        size = _get_np_dtype(pointers.get_element_ty()).itemsize
        self._memory.check(addresses, size, origin_of(pointers), verb)

    def create_masked_load(self, ptrs: Any, mask: Any, other: Any, *policies: Any, **named: Any) -> Any:
        mask = _as_handle(mask)
        self._check(ptrs, mask.data, "reads")
        return super().create_masked_load(ptrs, mask, other, *policies, **named)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *policies: Any, **named: Any) -> Any:
        mask = _as_handle(mask)
        self._check(ptrs, mask.data, "writes")
        # The native function takes as many bytes as the value has, which must be those of the pointer.
        dtype = _get_np_dtype(ptrs.get_element_ty())
        if value.data.dtype != dtype:
            value = TensorHandle(value.data.astype(dtype), value.dtype)
        return super().create_masked_store(ptrs, value, mask, *policies, **named)

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        self._check(ptr, None, "reads and writes")
        with _atomics:
            found = super().create_atomic_cas(ptr, cmp, val, sem, scope)
        self._failures = self._failures + 1 if np.any(found.data != cmp.data) else 0
        if self._failures > _MOST_FAILURES:
            raise TimeoutError(
                f"tl.atomic_cas has not found the expected value {_MOST_FAILURES} times in a row. The "
                "programs of a grid run one after another on a virtual card, so none may wait for a later one"
            )
        return found

    def create_atomic_rmw(self, rmwOp: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        self._check(ptr, mask.data, "reads and writes")
        with _atomics:
            if is_narrow(val.dtype.scalar):
                return self._narrow_atomic_add(rmwOp, ptr, val, mask)
            return super().create_atomic_rmw(rmwOp, ptr, val, mask, sem, scope)

    def _narrow_atomic_add(self, operation: Any, ptr: Any, val: Any, mask: Any) -> Any:
        if operation != ir.ATOMIC_OP.FADD:
            self._lacks(f"the atomic operation {operation} of {val.dtype}")
        pointers, values, used = np.broadcast_arrays(ptr.data, val.data, mask.data)
        before = np.zeros_like(values)
        # One after another, because several elements may have one address.
        for index in np.ndindex(pointers.shape):
            if not used[index]:
                continue
            address, one = pointers[index].reshape(1), np.ones(1, dtype=bool)
            old = native.load(address, one, np.zeros(1, dtype=values.dtype), values.dtype)
            total = widen(old, val.dtype.scalar) + widen(values[index].reshape(1), val.dtype.scalar)
            native.store(address, narrow(total, val.dtype.scalar), one)
            before[index] = old[0]
        return TensorHandle(before, val.dtype.scalar)

    # ---- constants, which wrap around as in C

    def _integer(self, value: int, dtype: Any, of_numpy: Any) -> Any:
        bits = np.dtype(of_numpy).itemsize * 8
        value = int(value) & (1 << bits) - 1
        return TensorHandle(np.array([value], dtype=f"uint{bits}").view(of_numpy), dtype)

    def get_bf16(self, value: float) -> Any:
        return TensorHandle(narrow(np.array([value], dtype=np.float32), tl.bfloat16), tl.bfloat16)

    def get_fp8e4b8_ty(self) -> Any:
        return tl.float8e4b8

    def get_fp8e4b15_ty(self) -> Any:
        return tl.float8e4b15

    # ---- conversions

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if is_narrow(source):
            src = TensorHandle(widen(src.data, source), tl.float32)
        if is_narrow(target):
            return TensorHandle(narrow(src.data.astype(np.float32), target), target)
        return TensorHandle(src.data.astype(_get_np_dtype(dst_type)), target)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if tl.float8e4b15 in (source, target):
            return super().create_fp_to_fp(src, dst_type, rounding_mode)
        towards_zero = rounding_mode == ir.ROUNDING_MODE.RTZ
        values = widen(src.data, source) if is_narrow(source) else src.data
        if is_narrow(target):
            return TensorHandle(narrow(values.astype(np.float32), target, towards_zero), target)
        if target == tl.float16 and towards_zero:
            return TensorHandle(half_towards_zero(values.astype(np.float32)), target)
        return TensorHandle(values.astype(_get_np_dtype(dst_type)), target)

    # ---- arithmetic

    def binary_op(self, lhs: Any, rhs: Any, op: Callable[..., Any]) -> Any:
        dtype = lhs.dtype.scalar
        if is_narrow(dtype):
            result = op(widen(lhs.data, dtype), widen(rhs.data, dtype))
            if result.dtype == np.bool_:
                return TensorHandle(result, tl.int1)
            return TensorHandle(narrow(result, dtype), dtype)
        if lhs.data.dtype == np.bool_ and rhs.data.dtype == np.bool_ and op in _WRAPPING:
            wide = op(lhs.data.astype(np.int8), rhs.data.astype(np.int8))
            return TensorHandle((wide & 1).astype(np.bool_), dtype)
        return super().binary_op(lhs, rhs, op)

    def unary_op(self, arg: Any, op: Callable[..., Any]) -> Any:
        dtype = arg.dtype.scalar
        if is_narrow(dtype):
            return TensorHandle(narrow(op(widen(arg.data, dtype)), dtype), dtype)
        return super().unary_op(arg, op)

    def _wide(self, handle: Any) -> Any:
        dtype = handle.dtype.scalar
        return TensorHandle(widen(handle.data, dtype), tl.float32) if is_narrow(dtype) else handle

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        dtype = z.dtype.scalar
        if dtype == tl.float64:
            return super().create_fma(x, y, z)
        # A product of two float32 is exact in float64, so this rounds the sum only.
        exact = self._wide(x).data.astype(np.float64) * self._wide(y).data + self._wide(z).data
        return TensorHandle(_rounded(exact, dtype), dtype)

    def create_minnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmin)

    def create_maxnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmax)

    def create_clampf(self, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
        if propagate_nans == ir.PROPAGATE_NAN.NONE:
            return self.create_minnumf(self.create_maxnumf(arg, lo), hi)
        return self.create_minimumf(self.create_maximumf(arg, lo), hi)

    def create_ashr(self, lhs: Any, rhs: Any) -> Any:
        signed = np.dtype(f"int{lhs.data.dtype.itemsize * 8}")
        shifted = np.right_shift(lhs.data.astype(signed), rhs.data.astype(signed))
        return TensorHandle(shifted.astype(lhs.data.dtype), lhs.dtype.scalar)

    def create_erf(self, arg: Any) -> Any:
        return self.unary_op(arg, libdevice.FUNCTIONS["erf"])

    def create_rsqrt(self, arg: Any) -> Any:
        return self.unary_op(arg, libdevice.FUNCTIONS["rsqrt"])

    def create_dot(self, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        left, right = self._wide(a).data, self._wide(b).data
        if not np.issubdtype(d.data.dtype, np.integer):
            # Tensor cores keep the sum in float32 for halves, too, and round the result once.
            wide = np.float64 if d.data.dtype == np.float64 else np.float32
            total = np.matmul(left.astype(wide), right.astype(wide)) + d.data.astype(wide)
            return TensorHandle(total.astype(d.data.dtype), d.dtype.scalar)
        total = np.matmul(left.astype(d.data.dtype), right.astype(d.data.dtype)) + d.data
        return TensorHandle(total, d.dtype.scalar)

    def create_assert(self, condition: Any, message: str) -> None:
        if not np.all(condition.data):
            raise AssertionError(f"tl.device_assert: {message}")

    def create_assume(self, condition: Any) -> None:
        if not np.all(condition.data):
            raise AssertionError("tl.assume: the condition is false")

    # ---- what libraries and assembly do

    def create_extern_elementwise(
        self, libName: str, libPath: str, symbol: str, argList: Any, retType: Any, isPure: bool
    ) -> Any:
        dtype = retType.scalar
        function = libdevice.function(symbol)
        if function is None:
            self._lacks(f"the function {symbol} of {libName or 'libdevice'}")
        values = [self._wide(argument).data for argument in argList]
        return TensorHandle(_rounded(function(*values), dtype), dtype)

    def create_inline_asm(self, inlineAsm: Any, *arguments: Any) -> NoReturn:
        text = " ".join(str(getattr(inlineAsm, "value", inlineAsm)).split())
        self._lacks(f"the assembly of a GPU ({text!r}, by tl.inline_asm_elementwise)")

    def _lacks(self, what: str) -> NoReturn:
        raise NotImplementedError(
            f"Triton's interpreter, which runs the kernel on a virtual card, lacks {what}. Guard it, for "
            "example by a constexpr argument, or give cards a version in Triton's language"
        )

    def __getattr__(self, name: str) -> Any:
        if not name.startswith(("create_", "get_")):
            raise AttributeError(name)

        def lacking(*args: Any, **kwargs: Any) -> NoReturn:
            self._lacks(f"the operation {name.removeprefix('create_')}")

        return lacking


# What differs for single bits: numpy takes a sum for "or" and refuses a difference.
_WRAPPING = (np.add, np.subtract, np.multiply)


def _rounded(values: Array, dtype: Any) -> Array:
    if is_narrow(dtype):
        return narrow(values, dtype)
    return np.asarray(values).astype(_get_np_dtype(dtype))


def _as_handle(mask: Any) -> Any:
    return mask if isinstance(mask, TensorHandle) else TensorHandle(np.asarray(mask), tl.int1)


def _wrapping_constants() -> None:
    for name, (dtype, of_numpy) in _INTEGERS.items():

        def constant(self: CardBuilder, value: int, dtype: Any = dtype, of_numpy: Any = of_numpy) -> Any:
            return self._integer(value, dtype, of_numpy)

        setattr(CardBuilder, f"get_{name}", constant)


def _following_pointers() -> None:
    """Makes what moves pointers about keep the argument that they were computed from."""
    for name in (
        "addptr",
        "splat",
        "unsplat",
        "broadcast",
        "expand_dims",
        "reshape",
        "trans",
        "bitcast",
        "int_to_ptr",
        "ptr_to_int",
    ):
        original = getattr(InterpreterBuilder, f"create_{name}")

        def follow(self: CardBuilder, *args: Any, original: Any = original, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            for argument in (*args, *kwargs.values()):
                if isinstance(argument, TensorHandle) and origin_of(argument) is not None:
                    return with_origin(result, origin_of(argument))
            return result

        setattr(CardBuilder, f"create_{name}", follow)


_wrapping_constants()
_following_pointers()
