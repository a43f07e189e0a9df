"""Runs the programs of a kernel's grid, one after another, when the kernel's turn on the stream has come."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime.interpreter import TensorHandle, _get_np_dtype

from vccl._triton.builder import CardBuilder, with_origin
from vccl._triton.errors import TritonKernelError
from vccl._triton.language import Running, builtin, meaning
from vccl._triton.memory import KnownMemory, Memory
from vccl._triton.source import DeviceFunction, Names


class Pointer:
    """A tensor among a kernel's arguments: an address, its type, and the memory that it lies in."""

    def __init__(self, memory: Memory, kind: str) -> None:
        """Takes the type of the pointer as Triton writes it, such as "*fp32"."""
        self.memory = memory
        self.kind = kind

    def __vccl_value__(self) -> Any:
        dtype = tl.str_to_ty(self.kind, None)
        handle = TensorHandle(np.array([self.memory.pointer], dtype=np.uint64), dtype)
        return tl.tensor(with_origin(handle, self.memory), dtype)


class Number:
    """A number among a kernel's arguments, with the type that Triton gives it, such as "i32"."""

    def __init__(self, value: Any, kind: str) -> None:
        self.value = value
        self.kind = kind

    def __vccl_value__(self) -> Any:
        dtype = tl.str_to_ty(self.kind, None)
        if dtype == tl.bfloat16:
            raise TypeError("a number of type bf16 is no argument of a kernel on a card: use fp32")
        data = np.array([self.value]).astype(_get_np_dtype(dtype))
        return tl.tensor(TensorHandle(data, dtype), dtype)


class Descriptor:
    """A tensor descriptor among a kernel's arguments."""

    def __init__(self, base: Pointer, shape: Any, strides: Any, block_shape: Any, padding: str) -> None:
        self.base, self.shape, self.strides = base, shape, strides
        self.block_shape, self.padding = block_shape, padding

    def __vccl_value__(self) -> Any:
        strides = [_integer(stride, "i64") for stride in self.strides[:-1]]
        return builtin(tl.make_tensor_descriptor)(
            self.base.__vccl_value__(),
            shape=[_integer(size, "i32") for size in self.shape],
            strides=[*strides, tl.constexpr(1)],
            block_shape=[tl.constexpr(size) for size in self.block_shape],
            padding_option=self.padding,
        )


def _integer(value: int, kind: str) -> Any:
    return Number(value, kind).__vccl_value__()


def _value_of(argument: Any) -> Any:
    if isinstance(argument, tuple):
        values = map(_value_of, argument)
        return type(argument)(*values) if hasattr(argument, "_fields") else tl.tuple(list(values))
    if isinstance(argument, (Pointer, Number, Descriptor)):
        return argument.__vccl_value__()
    return meaning(argument)


def run_grid(
    function: DeviceFunction,
    arguments: Mapping[str, Any],
    grid: tuple[int, int, int],
    memory: KnownMemory,
    debug: bool,
) -> None:
    """Runs all programs of a grid on the calling thread.

    Raises:
        TritonKernelError: a program has failed. The text has the kernel, the program and the line.
    """
    builder = CardBuilder(memory, debug)
    builder.set_grid_dim(*grid)
    with Running(builder), np.errstate(all="ignore"):
        try:
            values = {name: _value_of(argument) for name, argument in arguments.items()}
            for x in range(grid[0]):
                for y in range(grid[1]):
                    for z in range(grid[2]):
                        builder.set_grid_idx(x, y, z)
                        function(**values)
        except Exception as error:
            # No chain: the frames of the exception would keep the kernel's blocks.
            raise TritonKernelError(_describe(error, function, builder.grid_idx, grid)) from None


def _describe(error: Exception, function: DeviceFunction, program: Any, grid: Any) -> str:
    reason = str(error) or type(error).__name__
    if not isinstance(error, (IndexError, NotImplementedError)):
        reason = f"{type(error).__name__}: {reason}"
    line = _line_of(error)
    where = f" (program {tuple(program)} of the grid {tuple(grid)})"
    if not line:
        return f"The Triton kernel {function.__name__!r} failed{where}: {reason}"
    return f"The Triton kernel {function.__name__!r} failed at {line}{where}: {reason}"


def _line_of(error: Exception) -> str:
    """Returns the innermost line of the program's own kernels that the error has passed."""
    frames = [
        (frame.f_code.co_filename, number)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if isinstance(frame.f_globals, Names)
    ]
    own = [frame for frame in frames if not frame[0].startswith(triton.__path__[0])]
    if not frames:
        return ""
    name, number = (own or frames)[-1]
    text = linecache.getline(name, number).strip()
    return f"{name}:{number}" + (f", `{text}`" if text else "")
