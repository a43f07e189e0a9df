"""Where a program calls its operators: in which module, forward or backward, on which line."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

_TORCH = os.path.dirname(torch.__file__) + os.sep
_WRAPPED = "_orig_mod"  # what the wrapper of torch.compile calls the module in it
_HERE = os.path.dirname(__file__) + os.sep


@dataclass(frozen=True)
class Place:
    """Where an operator was called.

    ``module`` is the path of the innermost module that was running, "" for the outermost one or for none.
    ``call`` counts the calls of that module from 0. In the backward pass both, and ``line``, are those of the
    operator of the forward pass whose gradient is computed.
    """

    module: str = ""
    call: int = 0
    backward: bool = False
    line: str = ""

    def __str__(self) -> str:
        parts = [f"module {self.module!r}" if self.module else "the outermost module"]
        if self.call:
            parts.append(f"call {self.call + 1}")
        parts.append("backward" if self.backward else "forward")
        return ", ".join(parts)


@dataclass(frozen=True)
class _Running:
    path: str
    call: int
    in_backward: bool


def plain_path(path: str) -> str:
    """Returns the path of a module, parameter or buffer without the wrappers of torch.compile."""
    return ".".join(part for part in path.split(".") if part != _WRAPPED)


def modules_of(root: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """Returns a module and all in it, each with its path, but for the wrappers of torch.compile."""
    named = root.named_modules(prefix=prefix)
    return [(plain_path(path), module) for path, module in named if _WRAPPED not in module._modules]


class Places:
    """Knows where the program is, while ``watching()``.

    What torch.compile has compiled runs uncompiled meanwhile: its operators are seen, and it is compiled as
    before later on. Otherwise torch would note for good that what ran under a dispatch mode is not compiled.
    Modules are followed by hooks. An operator of the backward pass finds its module by the number that
    autograd has given to the node it runs for, which the forward pass has noted.
    """

    def __init__(self, modules: Sequence[tuple[str, nn.Module]]) -> None:
        """Takes modules to follow, each with its path."""
        self.modules = list(modules)
        self.module_ended: Callable[[str, int, Any], None] | None = None  # called with the output of each
        self._stack: list[_Running] = []
        self._calls: dict[str, int] = {}
        self._origins: dict[int, Place] = {}

    @contextmanager
    def watching(self) -> Iterator[Places]:
        """Follows the modules in the block. The hooks are removed at its end, also after an exception."""
        handles: list[Any] = []
        try:
            for path, module in self.modules:
                handles.append(module.register_forward_pre_hook(self._entering(path), prepend=True))
                handles.append(module.register_forward_hook(self._left, always_call=True))
            with torch.compiler.set_stance("force_eager"):
                yield self
        finally:
            for handle in handles:
                handle.remove()
            self._stack.clear()

    def _entering(self, path: str) -> Any:
        def entered(_module: nn.Module, _arguments: Any) -> None:
            call = self._calls.get(path, -1) + 1
            self._calls[path] = call
            in_backward = torch._C._current_autograd_node() is not None
            self._stack.append(_Running(path, call, in_backward))

        return entered

    def _left(self, _module: nn.Module, _arguments: Any, output: Any) -> None:
        """Also called when the module has raised an exception, with None for the output."""
        if not self._stack:
            return
        if self.module_ended is not None and output is not None:
            with _disable_current_modes():
                self.module_ended(self._stack[-1].path, self._stack[-1].call, output)
        self._stack.pop()

    def here(self) -> Place:
        """Returns the place of the operator that is being called."""
        node = torch._C._current_autograd_node()
        if node is not None and not (self._stack and self._stack[-1].in_backward):
            origin = self._origins.get(node._sequence_nr())
            if origin is None:
                return Place(backward=True, line=f"{node.name()}")
            return Place(origin.module, origin.call, True, origin.line)
        path, call = (self._stack[-1].path, self._stack[-1].call) if self._stack else ("", 0)
        place = Place(path, call, node is not None, calling_line())
        if node is None and torch.is_grad_enabled():
            # VariableType makes the node before it calls the kernel, so the newest number is this operator's.
            # If it has made none, the number is that of an earlier operator, which is noted already.
            self._origins.setdefault(torch._C._autograd._get_sequence_nr() - 1, place)
        return place


def calling_line() -> str:
    """Returns "file:line in function" of the innermost frame of the program.

    Frames of torch and of this package do not count. If the program itself is only seen beyond the call of
    this package, the innermost frame in torch.nn is returned.
    """
    frame = sys._getframe(1)
    in_torch = ""
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        if file.startswith(_HERE):
            if code.co_name == "run_on_side":
                break
        elif file.startswith(_TORCH):
            if not in_torch and f"{os.sep}nn{os.sep}modules{os.sep}" in file and code.co_name == "forward":
                in_torch = f"{file}:{frame.f_lineno} in {_name_of(code)}"
        elif not file.startswith("<frozen"):
            return f"{file}:{frame.f_lineno} in {_name_of(code)}"
        frame = frame.f_back  # type: ignore[assignment]
    return in_torch


def _name_of(code: types.CodeType) -> str:
    return getattr(code, "co_qualname", code.co_name)  # Python 3.10 keeps no qualified name
