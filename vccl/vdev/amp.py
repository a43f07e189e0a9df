"""Offers mixed precision on the cards: torch.amp bound to the device, under the names of torch.cuda.amp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.amp import autocast_mode, grad_scaler

from vccl import _C

__all__ = [
    "GradScaler",
    "amp_definitely_not_available",
    "autocast",
    "custom_bwd",
    "custom_fwd",
    "get_amp_supported_dtype",
]


def amp_definitely_not_available() -> bool:
    """Returns whether this process sees no card."""
    return _C.device_count() == 0


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the dtypes that ``torch.autocast("vdev", dtype=...)`` takes."""
    return [torch.float16, torch.bfloat16]


class autocast(autocast_mode.autocast):
    """Stands for ``torch.autocast("vdev", ...)``."""

    def __init__(
        self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True
    ) -> None:
        super().__init__("vdev", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(grad_scaler.GradScaler):
    """Stands for ``torch.amp.GradScaler("vdev", ...)``."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__("vdev", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, cast_inputs: torch.dtype | None = None
) -> Callable[..., Any]:
    """Decorates the forward of a ``torch.autograd.Function``, as ``torch.amp.custom_fwd`` does for vdev."""
    return autocast_mode.custom_fwd(fwd, device_type="vdev", cast_inputs=cast_inputs)


def custom_bwd(bwd: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Decorates the backward of a ``torch.autograd.Function``, as ``torch.amp.custom_bwd`` does for vdev."""
    return autocast_mode.custom_bwd(bwd, device_type="vdev")
