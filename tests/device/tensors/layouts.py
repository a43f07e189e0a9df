"""Compares what a function gives for the card with what it gives for the CPU."""

import io
from collections.abc import Callable
from typing import Any

import torch


def plain(value: Any) -> Any:
    """The value as it would be on the CPU, made of tensors that can be compared."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return [plain(part) for part in value.unbind()]
        return value.dequantize().cpu() if value.is_quantized else value.cpu()
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, str):
        for word in (", device='vdev:0'", "device='vdev:0', "):
            value = value.replace(word, "")
        return " ".join(value.split())
    return value


def compare(function: Callable[[str], Any]) -> None:
    """Calls the function with both devices. It must give the same, and on the card tensors of the card."""
    wanted, got = function("cpu"), function("vdev")
    for tensor in got if isinstance(got, (list, tuple)) else [got]:
        if isinstance(tensor, torch.Tensor):
            assert tensor.device == torch.device("vdev:0")
    if isinstance(wanted, torch.Tensor):
        assert (got.layout, got.dtype, got.is_nested) == (wanted.layout, wanted.dtype, wanted.is_nested)
    if isinstance(wanted, str):
        assert plain(got) == plain(wanted)
    else:
        torch.testing.assert_close(plain(got), plain(wanted))


def saved(tensor: torch.Tensor, **keywords: Any) -> torch.Tensor:
    """What torch.load makes of the saved tensor."""
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file, **keywords)


def gradient(leaf: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """The gradient of the sum of the result."""
    dense = result.to_padded_tensor(0.0) if result.is_nested else result
    dense.sum().backward()
    assert leaf.grad is not None
    return leaf.grad
