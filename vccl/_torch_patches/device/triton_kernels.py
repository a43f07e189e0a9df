"""Refuses to launch a Triton kernel on a card's tensors, and says why.

Triton finds no driver and says "0 active drivers ([]). There should only be one." Kernels that
``TRITON_INTERPRET=1`` interprets are launched by another class, and run on cards.
"""

from collections.abc import Callable
from typing import Any

import torch

from vccl._cards.no_gpu import NoGpuError
from vccl._device_type import device_type
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without='a Triton kernel that is launched on a card\'s tensors ends with "0 active drivers ([])"',
    until="Triton names the device that it has no driver for",
    after_import_of="triton.runtime.jit",
)


@PATCH.replaces("triton.runtime.jit:JITFunction.run", "(self, *args, grid, warmup, **kwargs)")
def _run(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    if any(
        isinstance(value, torch.Tensor) and value.device.type == device_type()
        for value in (*args, *kwargs.values())
    ):
        raise NoGpuError(
            f"The Triton kernel {self.fn.__name__!r}",
            "Use operators of torch, or set TRITON_INTERPRET=1, with which Triton interprets its kernels.",
        )
    return original(self, *args, **kwargs)
