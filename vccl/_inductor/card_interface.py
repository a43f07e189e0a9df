"""Answers what Dynamo and Inductor ask about a device."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch._dynamo.device_interface import DeviceInterface

from vccl import _C
from vccl._device_type import device_type

_module = getattr(torch, device_type())


def _properties(device: torch.types.Device = None) -> Any:
    return _module.get_device_properties(device)


def _exchange_device(device: int) -> int:
    return _C.exchange_device(device)


# Dynamo tells the two apart by the function object, so they must not be one.
def _maybe_exchange_device(device: int) -> int:
    return _C.exchange_device(device)


def _raw_stream(device_idx: int) -> int:
    return _module.current_stream(device_idx).stream_id


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    _module.set_stream(torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))


class CardInterface(DeviceInterface):
    """The cards, as ``torch._dynamo.device_interface.CudaInterface`` shows GPUs."""

    device = _module.device
    Event = _module.Event
    Stream = _module.Stream

    class Worker:
        """What Inductor's compile workers ask. They are threads or processes that use no card."""

        set_device = staticmethod(_module.set_device)
        current_device = staticmethod(_module.current_device)
        get_device_properties = staticmethod(_properties)

    current_device = staticmethod(_module.current_device)
    set_device = staticmethod(_module.set_device)
    device_count = staticmethod(_module.device_count)
    is_available = staticmethod(_module.is_available)
    stream = staticmethod(_module.stream)
    current_stream = staticmethod(_module.current_stream)
    set_stream = staticmethod(_module.set_stream)
    synchronize = staticmethod(_module.synchronize)
    get_device_properties = staticmethod(_properties)
    memory_allocated = staticmethod(_module.memory_allocated)
    is_bf16_supported = staticmethod(_module.is_bf16_supported)
    get_raw_stream = staticmethod(_raw_stream)
    exchange_device = staticmethod(_exchange_device)
    maybe_exchange_device = staticmethod(_maybe_exchange_device)
    _set_stream_by_id = staticmethod(_set_stream_by_id)

    @staticmethod
    def get_compute_capability(device: torch.types.Device = None) -> str:
        """Returns "", as for the CPU, which the code is generated for."""
        return ""

    @staticmethod
    def is_triton_capable(device: torch.types.Device = None) -> bool:
        """Returns False, because Triton has no GPU to compile for."""
        return False

    @staticmethod
    def raise_if_triton_unavailable(device: torch.types.Device = None) -> NoReturn:
        """Raises RuntimeError, because Triton has no GPU to compile for."""
        raise RuntimeError(f"Triton cannot compile for {device_type()}: the cards have no GPU.")
