"""What the names of Triton's language mean inside of a kernel that runs on a card.

A kernel's code is executed with names of its own (``Names``), so nothing that other threads see of Triton
changes while it runs: they may compile kernels, or run others. Only the methods of Triton's tensors are
shared. They take the operations of the kernel that the calling thread runs.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle
from triton.runtime.jit import JITFunction

from vccl._triton import reductions
from vccl._triton.builder import CardBuilder, origin_of, with_origin

_LIBDEVICE = "triton.language.extra.libdevice"


class _Thread(threading.local):
    semantic: TritonSemantic | None = None


_thread = _Thread()


class Running:
    """Has the calling thread run the operations of a kernel with this builder, inside of a ``with`` block."""

    def __init__(self, builder: CardBuilder) -> None:
        self._semantic = TritonSemantic(builder)

    def __enter__(self) -> TritonSemantic:
        self._before, _thread.semantic = _thread.semantic, self._semantic
        return self._semantic

    def __exit__(self, *exception: object) -> None:
        _thread.semantic = self._before


def is_running() -> bool:
    """Returns whether the calling thread runs a kernel."""
    return _thread.semantic is not None


def is_tensor(value: object) -> bool:
    """Returns whether this is a tensor of Triton's language."""
    return isinstance(value, tl.tensor)


def to_tensor(value: Any) -> Any:
    """Returns a number as a tensor of Triton's language, and anything else as it is."""
    assert _thread.semantic is not None
    return _thread.semantic.to_tensor(value, check_type=False)


def scalar(value: int, dtype: Any = tl.int32) -> Any:
    """Returns an integer as a scalar of Triton's language."""
    np_dtype = np.int32 if dtype == tl.int32 else np.int64
    return tl.tensor(TensorHandle(np.array([value], dtype=np_dtype), dtype), dtype)


def _counting(start: Any, stop: Any = None, step: Any = None, **hints: Any) -> Iterator[Any]:
    """Counts as range() and tl.range() do in a kernel, where the counter is a tensor."""
    if stop is None:
        start, stop = 0, start
    step = 1 if step is None else step
    wide = any(is_tensor(bound) and bound.dtype.primitive_bitwidth == 64 for bound in (start, stop, step))
    for value in range(int(start.__index__()), int(stop.__index__()), int(step.__index__())):
        yield scalar(value, tl.int64 if wide else tl.int32)


def _unrolled(start: Any, stop: Any = None, step: Any = None) -> Iterator[int]:
    """Counts as tl.static_range() does, where the counter is a constant."""
    if stop is None:
        start, stop = 0, start
    return iter(range(start.__index__(), stop.__index__(), 1 if step is None else step.__index__()))


def _static_assert(condition: Any, message: Any = "", **ignored: Any) -> None:
    if not condition:
        raise AssertionError(f"tl.static_assert: {message}")


def _static_print(*values: Any, **options: Any) -> None:
    options.pop("_semantic", None)
    print(*values, **options)


def _hint(tensor: Any, values: Any, **ignored: Any) -> Any:
    return tensor


def _unwrapped(value: Any) -> Any:
    return getattr(value, "value", value)


def _map_elementwise(function: Any, *arguments: Any, pack: int = 1, **ignored: Any) -> Any:
    raise NotImplementedError(
        "Triton's interpreter, which runs the kernel on a virtual card, has no tl.map_elementwise. Write the "
        "function with tl.where"
    )


def _extremum(of_tensors: Any, of_numbers: Callable[..., Any]) -> Callable[..., Any]:
    def choose(*values: Any, **options: Any) -> Any:
        if not any(map(is_tensor, values)):
            return of_numbers(*values, **options)
        return functools.reduce(lambda x, y: builtin(of_tensors)(x, y), values)

    return choose


# By name, because the same function is found in triton.language and in triton.language.core.
_REPLACED: dict[str, Any] = {
    "range": _counting,
    "static_range": _unrolled,
    "static_assert": _static_assert,
    "static_print": _static_print,
    "multiple_of": _hint,
    "max_contiguous": _hint,
    "max_constancy": _hint,
    "reduce": reductions.reduce,
    "_reduce_with_indices": reductions.reduce_with_indices,
    "associative_scan": reductions.associative_scan,
    "map_elementwise": _map_elementwise,
    "constexpr": _unwrapped,
}
_OF_LANGUAGE = {getattr(tl.core, name): value for name, value in _REPLACED.items() if hasattr(tl.core, name)}


@functools.cache
def builtin(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an operation of Triton's language as a function that a kernel calls."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = _thread.semantic
        return function(*args, **kwargs)

    return call


class _Module:
    """A module as a kernel sees it: what it finds there means what it means in a kernel."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = meaning(getattr(self._module, name))
        if self._module.__name__.startswith("triton."):  # whose names do not change
            setattr(self, name, value)
        return value


_modules: dict[str, _Module] = {}
# Makes what a kernel calls of another kernel's function. source.py, which stands above this file, sets it.
_makers: list[Callable[[JITFunction], Any]] = []


def make_functions_by(maker: Callable[[JITFunction], Any]) -> None:
    """Says what makes a function of Python of one of Triton's."""
    _makers[:] = [maker]


def meaning(value: Any) -> Any:
    """Returns what a value that a kernel names means in the kernel."""
    if isinstance(value, tl.constexpr):
        return meaning(value.value)
    if isinstance(value, JITFunction):
        return _makers[0](value)
    if isinstance(value, ModuleType):
        return _modules.setdefault(value.__name__, _Module(value))
    if not callable(value):
        return value
    if getattr(value, "__module__", None) == _LIBDEVICE and not tl.core.is_builtin(value):
        from triton.language.extra.cuda import libdevice

        value = getattr(libdevice, value.__name__)
    try:
        if value in _OF_LANGUAGE:
            return _OF_LANGUAGE[value]
    except TypeError:  # it cannot be hashed
        return value
    return builtin(value) if tl.core.is_builtin(value) else value


def builtin_names() -> dict[str, Any]:
    """Returns Python's functions that mean something else in a kernel."""
    return {
        "range": _counting,
        "min": _extremum(tl.minimum, min),
        "max": _extremum(tl.maximum, max),
        "print": builtin(tl.device_print),
        "abs": lambda x: builtin(tl.abs)(x) if is_tensor(x) else abs(x),
    }


# ---- Triton's tensors


def _method(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _thread.semantic is not None and kwargs.get("_semantic") is None:
            kwargs["_semantic"] = _thread.semantic
        return original(*args, **kwargs)

    return call


def _truth(self: Any) -> bool:
    # Triton's own code asks blocks, too, to tell them from None.
    if not isinstance(self.handle, TensorHandle) or self.handle.data.size != 1:
        return True
    return bool(self.handle.data.reshape(())[()])


def _index(self: Any) -> int:
    if not isinstance(self.handle, TensorHandle) or self.handle.data.size != 1:
        raise TypeError("a kernel uses a block of several elements as one integer")
    return int(self.handle.data.reshape(())[()])


def _text(original: Callable[[Any], str]) -> Callable[[Any], str]:
    def text(self: Any) -> str:
        return str(self.handle.data) if isinstance(self.handle, TensorHandle) else original(self)

    return text


def _transposed(original: Any) -> property:
    def get(self: Any) -> Any:
        if not is_running():
            return original.__get__(self, type(self)) if hasattr(original, "__get__") else original
        order = [*range(len(self.shape) - 2), len(self.shape) - 1, len(self.shape) - 2]
        return builtin(tl.permute)(self, *order)

    return property(get)


def _pointers_of(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def materialize(self: Any, *args: Any) -> Any:
        pointers, mask = original(self, *args)
        return with_origin(pointers, origin_of(self.base)), mask

    return materialize


def teach_tensors() -> None:
    """Lets the methods of Triton's tensors work in the kernels that this module runs."""
    for kind in (tl.tensor, tl.core.tensor_descriptor_base):
        for name, member in inspect.getmembers(kind):
            if tl.core.is_builtin(member):
                setattr(kind, name, _method(member))
    tensor: Any = tl.tensor
    tensor.__bool__, tensor.__index__, tensor.__int__ = _truth, _index, _index
    tensor.__str__, tensor.__repr__ = _text(tensor.__str__), _text(tensor.__repr__)
    tensor.T = _transposed(inspect.getattr_static(tensor, "T"))
    to_ir: Any = tl.dtype.to_ir
    # Triton's own types have no sign, which numpy needs.
    tl.dtype.to_ir = lambda self, builder: self if isinstance(builder, CardBuilder) else to_ir(self, builder)
    # Triton 3.9 makes tensors of pointers of block pointers, so it has no handle for these.
    for name in ("BlockPointerHandle", "TensorDescHandle"):
        if handle := getattr(interpreter, name, None):
            handle.materialize_pointers = _pointers_of(handle.materialize_pointers)


@functools.cache
def methods_in_triton() -> frozenset[str]:
    """Returns the names of the methods of tensors that are written in Triton's language, such as ``sum``."""
    members = inspect.getmembers(tl.tensor)
    return frozenset(name for name, member in members if isinstance(member, JITFunction))
