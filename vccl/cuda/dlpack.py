"""DLPack of cards in pose: torch reads its own tensors by it, and other libraries are refused.

A capsule of such a tensor says that its memory is a GPU's. A library that believes it calls CUDA, or hands
the address to a kernel, and ends in an error that does not name the cause.
"""

import contextvars
import enum
from typing import Any

import torch

from vccl._cards.no_gpu import NoGpuError

_to_method: Any = torch.Tensor.__dlpack__
_from: Any = torch.utils.dlpack.from_dlpack
_to_function: Any = torch.utils.dlpack.to_dlpack
_read_by_torch = contextvars.ContextVar("_read_by_torch", default=False)


class NoDlpackError(NoGpuError, BufferError):
    """Another library asked for a tensor of a card. DLPack prescribes BufferError."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(
            f"A DLPack capsule of a tensor on {device}",
            "Give other libraries tensor.cpu(), or ask for a copy on the CPU: dl_device=(1, 0).",
        )


def _dlpack(self: torch.Tensor, *, dl_device: tuple[enum.IntEnum, int] | None = None, **options: Any) -> Any:
    asked_for_cpu = dl_device is not None and dl_device[0] == torch.utils.dlpack.DLDeviceType.kDLCPU
    if self.device.type == "cuda" and not asked_for_cpu and not _read_by_torch.get():
        raise NoDlpackError(self.device)
    return _to_method(self, dl_device=dl_device, **options)


def _to_dlpack(tensor: torch.Tensor) -> Any:
    if tensor.device.type == "cuda":
        raise NoDlpackError(tensor.device)
    return _to_function(tensor)


def _from_dlpack(ext_tensor: Any, **options: Any) -> torch.Tensor:
    token = _read_by_torch.set(isinstance(ext_tensor, torch.Tensor))
    try:
        return _from(ext_tensor, **options)
    finally:
        _read_by_torch.reset(token)


def install() -> None:
    """Puts the functions in the place of torch's."""
    tensor: Any = torch.Tensor
    tensor.__dlpack__ = _dlpack
    for module in (torch, torch.utils.dlpack):
        names: Any = module
        names.from_dlpack, names.to_dlpack = _from_dlpack, _to_dlpack
