"""A kernel for one set of argument types, as Triton's launcher sees it after the compilation for a GPU."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from triton.runtime.jit import JITFunction, TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from vccl import _C
from vccl._device_type import device_type
from vccl._triton import uses
from vccl._triton.memory import KnownMemory, Memory
from vccl._triton.program import Descriptor, Number, Pointer, run_grid
from vccl._triton.source import DeviceFunction, device_function


class CardKernel:
    """What ``kernel[grid](...)`` and ``kernel.warmup(...)`` return, which Triton keeps for more launches.

    No compiler has made it, so what a compiler finds out has nominal values: a program uses as many registers
    as it may without limiting the programs of a multiprocessor, spills none, and a kilobyte of shared memory.
    """

    n_regs = 32
    n_spills = 0
    n_max_threads = 1024
    function = None
    module = None
    packed_metadata = ()

    def __init__(self, jit: JITFunction, signature: Mapping[str, Any], options: Any, target: Any) -> None:
        self.name = jit.fn.__name__
        self._jit = jit
        self._signature = signature
        self._debug = bool(getattr(options, "debug", False))
        self._written = uses.written_parameters(jit)
        self.src = types.SimpleNamespace(fn=jit, signature=signature)
        self.asm: dict[str, str] = {"source": jit.src}
        self.metadata = types.SimpleNamespace(
            **{**vars(options), "name": self.name, "shared": 1024, "target": target}
        )
        self.hash = jit.cache_key

    def _init_handles(self) -> None:
        """Does nothing. A compiled kernel is loaded into the GPU here, and some programs call it."""

    def launch_metadata(self, grid: Any, stream: Any, *arguments: Any) -> None:
        """Returns None, as for a launch that no hook watches."""

    def result(self) -> CardKernel:
        """Returns itself, as a compilation in the background does when it has ended."""
        return self

    def run(
        self,
        x: int,
        y: int,
        z: int,
        stream: int,
        function: object,
        packed_metadata: object,
        launch_metadata: object,
        enter: Callable[[Any], Any] | None,
        leave: Callable[[Any], Any] | None,
        *arguments: Any,
    ) -> None:
        """Puts the kernel on the current stream and returns. The arguments are those of all parameters.

        Raises:
            ValueError: a tensor is not in the memory of the current card.
        """
        _call_hook(enter, launch_metadata)
        if x * y * z > 0:
            launch(
                device_function(self._jit),
                dict(zip(self._signature.items(), arguments, strict=True)),
                (x, y, z),
                self._written,
                self._debug,
            )
        _call_hook(leave, launch_metadata)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        sizes = (*grid, 1, 1)[:3]
        return lambda *arguments, stream=None: self.run(
            *sizes, stream or 0, None, None, None, None, None, *arguments
        )


def _call_hook(hook: Any, metadata: object) -> None:
    # Triton keeps a chain of hooks, which older versions do not have.
    if hook is not None and getattr(hook, "calls", True):
        hook(metadata)


def launch(
    function: DeviceFunction,
    arguments: Mapping[tuple[str, Any], Any],
    grid: tuple[int, int, int],
    written: frozenset[str],
    debug: bool,
) -> None:
    """Makes a kernel a task of the current stream. Errors of the kernel are errors of the stream."""
    tensors: dict[str, list[torch.Tensor]] = {}
    values = {
        name: _Translation(name, function.__name__, tensors).of(value, kind)
        for (name, kind), value in arguments.items()
    }
    memories = [memory for argument in values.values() for memory in _memories_of(argument)]
    memory = KnownMemory(memories, _C.current_device())
    # Elements that a program does not write stay as they are, so what is written counts as read, too.
    reads = [tensor for group in tensors.values() for tensor in group]
    writes = [tensor for name, group in tensors.items() if name in written for tensor in group]

    def task() -> None:
        run_grid(function, values, grid, memory, debug)

    if reads:
        _C.launch_kernel(f"triton::{function.__name__}", reads, writes, task)
    else:
        _C.launch_host_func(task)


def _memories_of(argument: Any) -> list[Memory]:
    if isinstance(argument, tuple):
        return [memory for part in argument for memory in _memories_of(part)]
    if isinstance(argument, Descriptor):
        return [argument.base.memory]
    return [argument.memory] if isinstance(argument, Pointer) else []


class _Translation:
    """Turns an argument into what the task keeps of it, which is no tensor."""

    def __init__(self, name: str, kernel: str, tensors: dict[str, list[torch.Tensor]]) -> None:
        self._name = name
        self._kernel = kernel
        self._tensors = tensors.setdefault(name, [])

    def of(self, value: Any, kind: Any) -> Any:
        if isinstance(value, tuple):
            kinds = kind if isinstance(kind, (tuple, list)) else ["constexpr"] * len(value)
            parts = [self.of(part, of_part) for part, of_part in zip(value, kinds, strict=True)]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(value, TensorDescriptor):
            base = self._pointer(value.base, None)
            padding = getattr(value, "padding", "zero")
            return Descriptor(base, list(value.shape), list(value.strides), list(value.block_shape), padding)
        if isinstance(value, (torch.Tensor, TensorWrapper)):
            return self._pointer(value, kind)
        if hasattr(value, "data_ptr"):
            raise TypeError(
                f"The Triton kernel {self._kernel!r} got a {type(value).__name__} for {self._name!r}. "
                "Cards take tensors of torch."
            )
        if isinstance(value, bool):
            return Number(value, "u1") if kind != "constexpr" else value
        # What Triton makes a constant of, such as the integer 1, is one here.
        return Number(value, kind) if isinstance(value, (int, float)) and kind != "constexpr" else value

    def _pointer(self, value: Any, kind: Any) -> Pointer:
        tensor: torch.Tensor = value.base if isinstance(value, TensorWrapper) else value
        if not isinstance(kind, str) or not kind.startswith("*"):
            from triton.runtime.jit import mangle_type

            kind = mangle_type(value)
        self._check(tensor)
        storage = tensor.untyped_storage()
        if tensor.device.type != "cpu":
            self._tensors.append(tensor.detach())
        begin = storage.data_ptr()
        size = max(tensor.element_size(), 1)
        memory = Memory(
            self._name,
            tensor.data_ptr() or begin,
            begin,
            begin + storage.nbytes(),
            size,
            str(tensor.dtype).removeprefix("torch."),
        )
        return Pointer(memory, kind.replace("*k", "*"))

    def _check(self, tensor: torch.Tensor) -> None:
        device, current = tensor.device, _C.current_device()
        if device.type == device_type() and device.index == current:
            return
        if device.type == "cpu" and tensor.is_pinned():
            return
        advice = f"The kernel runs on the current card, {device_type()}:{current}."
        if device.type == device_type():
            advice += f" Choose the other one by `with torch.{device_type()}.device({device.index}):`."
        raise ValueError(
            f"Pointer argument {self._name!r} of the Triton kernel {self._kernel!r} cannot be accessed from "
            f"Triton: it is a tensor on {device}. {advice}"
        )
