"""Copies of an operator's arguments on another device, with their strides, and their form in a file."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

_NAMED_TYPES = (torch.layout, torch.memory_format)


def copy_to(tensor: torch.Tensor, device: str | torch.device) -> torch.Tensor:
    """Returns a copy with the same sizes and strides, also if elements overlap or lie apart."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return tensor.to(device, copy=True)
    if tensor.is_conj() or tensor.is_neg() or tensor.numel() == 0:
        return tensor.to(device, copy=True)
    extent = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    memory = torch.as_strided(tensor, (extent,), (1,)).to(device, copy=True)
    return torch.as_strided(memory, tensor.shape, tensor.stride())


def copies_on(tree: Any, device: str | torch.device, from_type: str) -> Any:
    """Returns arguments for a call on another device. What is on ``from_type``, or names it, moves."""
    target = torch.device(device)

    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return copy_to(value, target if value.device.type == from_type else value.device)
        if isinstance(value, torch.device):
            return target if value.type == from_type else value
        return None if isinstance(value, torch.Generator) else value

    return tree_map(moved, tree)


def to_plain(tree: Any, host_beside: bool) -> Any:
    """Returns arguments in a form that ``torch.load`` reads with ``weights_only=True``.

    ``host_beside`` says that CPU tensors among them are to stay on the CPU, because others are on a card.

    Raises:
        TypeError: an argument is neither a tensor nor plain data.
    """

    def on_host(device: torch.device) -> bool:
        return host_beside and device.type == "cpu"

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return {"tensor": copy_to(value, "cpu"), "host": on_host(value.device)}
        if isinstance(value, torch.device):
            return {"torch.device": "", "host": on_host(value)}
        if isinstance(value, _NAMED_TYPES):
            return {"torch": str(value).removeprefix("torch.")}
        if value is None or isinstance(value, bool | int | float | complex | str | torch.dtype):
            return value
        if isinstance(value, torch.Generator):
            return None
        raise TypeError(f"an argument of type {type(value).__name__} cannot be written to a file")

    return _mapped(plain, tree)


def from_plain(tree: Any, device: str | torch.device) -> Any:
    """Returns the arguments of ``to_plain()`` on a device. CPU tensors beside card tensors stay."""
    target = torch.device(device)

    def built(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if "tensor" in value:
            return copy_to(value["tensor"], "cpu" if value["host"] else target)
        if "torch.device" in value:
            return torch.device("cpu") if value["host"] else target
        return getattr(torch, value["torch"])

    return _mapped(built, tree)


def _mapped(function: Any, tree: Any) -> Any:
    """Applies a function to the leaves of lists and tuples, of which arguments of operators are made."""
    if isinstance(tree, list | tuple):
        return [_mapped(function, element) for element in tree]
    return function(tree)
