"""A side of a comparison: where and how a model runs."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from vccl._device_type import device_type
from vccl.compare.operators import tensors_in
from vccl.compare.parts import parts_of
from vccl.compare.places import Places, modules_of, plain_path


@dataclass(frozen=True)
class Side:
    """Where and how a model runs: on a device, with a dtype for its floating-point numbers if one is given.

    ``context`` returns a context manager that is active during the run, for whatever else the sides differ
    in: ``lambda: torch.autocast("cpu")``, a deterministic mode, another number of threads.
    """

    device: str | torch.device = "cpu"
    dtype: torch.dtype | None = None
    context: Callable[[], AbstractContextManager] = nullcontext

    def __str__(self) -> str:
        return f"{self.device}" if self.dtype is None else f"{self.device} ({self.dtype})"

    def move(self, value: Any) -> Any:
        """Returns a copy of a tensor or a module on this side. Anything else is returned as it is."""
        if isinstance(value, nn.Module):
            _check_meshes(value, torch.device(self.device))
            return copy.deepcopy(value).to(self.device, self.dtype)
        if isinstance(value, torch.Tensor):
            dtype = self.dtype if self.dtype is not None and value.is_floating_point() else value.dtype
            moved = value.detach().to(device=self.device, dtype=dtype, copy=True)
            return moved.requires_grad_(value.requires_grad)
        return value


def _check_meshes(module: nn.Module, device: torch.device) -> None:
    """Raises TypeError if a module is sharded already, and so bound to a mesh or not to be copied."""
    for name, parameter in module.named_parameters():
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is None:
            continue
        if mesh.device_type != device.type or hasattr(module, "unshard"):
            raise TypeError(
                f"parameter {name} is sharded over a mesh of {mesh.device_type!r}, so the module cannot be"
                f" copied to {device}. Pass the module before it is sharded to a function that shards it over"
                f" a mesh of its input's device, and calls it."
            )


@dataclass
class Program:
    """Both sides run it: a module or function, its arguments, and the start of the backward pass."""

    function: Callable[..., Any]
    args: tuple
    kwargs: Mapping[str, Any]
    loss: Callable[[Any], torch.Tensor] | None
    backward: bool

    def on(self, side: Side) -> Prepared:
        """Returns the program with copies of its modules and tensors on a side."""
        args, kwargs = tree_map(side.move, (self.args, dict(self.kwargs)))
        return Prepared(self, side, side.move(self.function), args, kwargs)


class Prepared:
    """A program on one side, to be run once."""

    def __init__(self, program: Program, side: Side, function: Any, args: tuple, kwargs: dict) -> None:
        self.program = program
        self.side = side
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self._roots = list(_modules_in(function, args, kwargs))
        named = [pair for path, root in self._roots for pair in modules_of(root, path)]
        self.places = Places(named)

    @property
    def device_type(self) -> str:
        return torch.device(self.side.device).type

    def results(self, output: Any) -> dict[str, torch.Tensor]:
        """Returns what the run leaves: outputs, parameters, buffers, and all gradients."""
        found = {f"output {i}": tensor for i, tensor in enumerate(tensors_in(output))}
        for path, module in self._roots:
            dot = f"{path}." if path else ""
            for name, parameter in module.named_parameters():
                where = dot + plain_path(name)
                found[f"parameter {where}"] = parameter
                if parameter.grad is not None:
                    found[f"gradient of {where}"] = parameter.grad
            for name, buffer in module.named_buffers():
                found[f"buffer {dot}{plain_path(name)}"] = buffer
        for i, tensor in enumerate(tensors_in((self.args, self.kwargs))):
            if tensor.grad is not None:
                found[f"gradient of argument {i}"] = tensor.grad
        return found


def _modules_in(function: Any, args: tuple, kwargs: dict) -> Iterator[tuple[str, nn.Module]]:
    """Yields modules among the function and its arguments, each with the beginning of its path."""
    if isinstance(function, nn.Module):
        yield "", function
    arguments = [*((str(i), value) for i, value in enumerate(args)), *kwargs.items()]
    modules = [(name, value) for name, value in arguments if isinstance(value, nn.Module)]
    alone = len(modules) == 1 and not isinstance(function, nn.Module)
    for name, module in modules:
        yield "" if alone else f"argument {name}", module


def run_on_side(prepared: Prepared, observer: AbstractContextManager) -> Any:
    """Runs a program forward, and backward if it asks for that. Returns its output.

    ``observer`` is active during the run. The generators of the CPU and the cards then go on as if there
    had been no run. An exception of the program gets a note that names the side.
    """
    program = prepared.program
    cards = range(torch.accelerator.device_count())
    try:
        with (
            torch.random.fork_rng(cards, device_type=device_type()),
            prepared.side.context(),
            prepared.places.watching(),
            observer,
        ):
            output = prepared.function(*prepared.args, **prepared.kwargs)
            if program.backward:
                run_backward(output, program.loss)
    except Exception as error:
        _add_note(error, f"vccl.compare: raised by the run on {prepared.side}")
        raise
    return output


def _add_note(error: Exception, note: str) -> None:
    """Adds a note that tracebacks show. Python 3.10 shows none, so the note goes to stderr as well there."""
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:
        vars(error).setdefault("__notes__", []).append(note)
        print(note, file=sys.stderr)


def run_backward(output: Any, loss: Callable[[Any], torch.Tensor] | None) -> None:
    """Runs the backward pass: from ``loss(output)``, or from fixed gradients of all outputs."""
    if loss is not None:
        loss(output).backward()
        return
    roots = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
    with _disable_current_modes():  # these operators are not the program's
        gradients = [_fixed_gradient(root) for root in roots]
    if roots:
        torch.autograd.backward(roots, gradients)


def _fixed_gradient(root: torch.Tensor) -> torch.Tensor:
    """Returns a gradient that is the same on all sides and has no zeros and no symmetry."""
    if not root.is_nested and not hasattr(root, "device_mesh"):
        return _ramp(root)
    gradient = torch.zeros_like(root.detach())
    for part in parts_of(gradient):
        if part.is_floating_point() or part.is_complex():  # others are the offsets of a jagged tensor
            part.copy_(_ramp(part))
    return gradient


def _ramp(like: torch.Tensor) -> torch.Tensor:
    ramp = torch.linspace(0.5, 1.5, max(like.numel(), 1))[: like.numel()]
    return ramp.reshape(like.shape).to(device=like.device, dtype=like.dtype)
