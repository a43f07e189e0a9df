"""Loads the operators of squared_relu.cpp, and registers one that is written in Python."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import torch

# "vdev", or "cuda" where the cards pose as CUDA.
CARD = str(torch.accelerator.current_accelerator())
card: Any = torch.get_device_module(CARD)

torch.ops.load_library(os.environ.get("SQUARED_RELU", Path(__file__).parent / "build" / "libsquared_relu.so"))


def squared_relu(x: torch.Tensor) -> torch.Tensor:
    """Returns the square of relu(x), on a card or on the CPU."""
    return torch.ops.examples.squared_relu(x)


def bias_squared_relu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Returns squared_relu(x + bias) in one pass. ``bias`` has one element for each of x's last dimension."""
    return torch.ops.examples.bias_squared_relu(x, bias)


@torch.library.custom_op("examples::softcap", mutates_args=())
def softcap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Returns cap * tanh(x / cap). Made of torch's operators, so it is in stream order by itself."""
    return torch.tanh(x / cap) * cap


@softcap.register_fake
def _(x: torch.Tensor, cap: float) -> torch.Tensor:
    return torch.empty_like(x)


def _save(ctx: Any, inputs: tuple[torch.Tensor, float], output: torch.Tensor) -> None:
    x, ctx.cap = inputs
    ctx.save_for_backward(x)


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
    (x,) = ctx.saved_tensors
    return gradient * (1 - torch.tanh(x / ctx.cap).square()), None


softcap.register_autograd(_backward, setup_context=_save)


def host_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a CPU tensor over the memory of a contiguous card tensor. Use it in stream order only."""
    memory = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).reshape(tensor.shape)


@torch.library.custom_op("examples::checksum", mutates_args=(), device_types=CARD)
def checksum(x: torch.Tensor) -> torch.Tensor:
    """Returns the sum of the bytes of x. The bytes are read by Python, as a task of the current stream."""
    result = torch.empty((), dtype=torch.int64, device=x.device)
    source, target = host_memory(x.contiguous()), host_memory(result)

    def task() -> None:
        target.fill_(sum(source.reshape(-1).view(torch.uint8).tolist()))

    card._launch_host_func(task)
    return result


@checksum.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64, device=x.device)
