"""What compiled code does in graphs of cards.

A kernel runs at its call. A graph holds tasks only, so kernels become tasks while the stream is captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vccl import _C
from vccl._device_type import device_type


def capture_kernel(name: str, uses: str, kernel: Callable[..., Any], *arguments: Any) -> None:
    """Gives a generated kernel to the stream that is captured.

    Args:
        uses: "w" for each tensor among the arguments that the kernel writes, "r" for one that it only reads.
        kernel: the compiled function, which gets the arguments at each replay. As with CUDA graphs, it uses
            the memory that they had at the capture, and the sizes and the numbers on the CPU of that time.
    """
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    uses_on_cards = [(tensor, use) for tensor, use in zip(tensors, uses, strict=True) if is_on_card(tensor)]
    reads = [tensor for tensor, _ in uses_on_cards]
    writes = [tensor for tensor, use in uses_on_cards if use == "w"]
    kept = [_kept(argument) for argument in arguments]
    _C.launch_kernel(name, reads, writes, lambda: kernel(*kept))


def move_to_card(result: torch.Tensor, source: torch.Tensor) -> None:
    """Copies a tensor for which ``non_blocking`` was asked, or a number for a kernel (graph_pass.py).

    A GPU's kernel gets a number of the CPU with its call, so that this is no copy in a graph. A graph has the
    number of the capture.
    """
    if not is_cpu_scalar(source) or not is_on_card(result):
        result.copy_(source, True)
    elif _C._is_captured(result.device.index):
        result.fill_(source.item())
    else:
        result.copy_(source)


def is_on_card(value: object) -> bool:
    """Returns whether a value is a tensor on a card."""
    return isinstance(value, torch.Tensor) and value.device.type == device_type()


def is_cpu_scalar(value: object) -> bool:
    """Returns whether a value is a tensor of the CPU with dimension 0."""
    return isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() == 0


def _kept(argument: Any) -> Any:
    """Returns what the task keeps of an argument.

    It owns no memory of a card, because the graph's pool uses that for further buffers of the same capture.
    """
    if is_on_card(argument):
        return _C._borrow(argument)
    return argument.clone() if isinstance(argument, torch.Tensor) else argument
