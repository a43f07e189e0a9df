"""Kernels of compiled code in graphs of cards.

A kernel runs at its call. A graph holds tasks only, so kernels become tasks while the stream is captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vccl import _C


def capture_kernel(name: str, uses: str, kernel: Callable[..., Any], *arguments: Any) -> None:
    """Gives a generated kernel to the stream that is captured.

    Args:
        uses: "w" for each tensor among the arguments that the kernel writes, "r" for one that it only reads.
        kernel: the compiled function, which gets the arguments at each replay. As with CUDA graphs, it uses
            the memory that they had at the capture, and the sizes of that time.
    """
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    writes = [tensor for tensor, use in zip(tensors, uses, strict=True) if use == "w"]
    # The task owns no memory, because the graph's pool uses it for further buffers of the same capture.
    kept = [_C._borrow(each) if isinstance(each, torch.Tensor) else each for each in arguments]
    _C.launch_kernel(name, tensors, writes, lambda: kernel(*kept))
