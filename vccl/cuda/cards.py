"""The functions of ``torch._C`` about devices, and the state that ``torch.cuda`` keeps of them."""

import dataclasses
from typing import Any

import torch

from vccl import _C
from vccl.vdev.properties import CardProperties, figures_of

__all__ = [
    "_CudaDeviceProperties",
    "_cuda_canDeviceAccessPeer",
    "_cuda_exchangeDevice",
    "_cuda_getArchFlags",
    "_cuda_getCompiledVersion",
    "_cuda_getDevice",
    "_cuda_getDeviceCount",
    "_cuda_get_sync_debug_mode",
    "_cuda_hasPrimaryContext",
    "_cuda_init",
    "_cuda_isInBadFork",
    "_cuda_maybeExchangeDevice",
    "_cuda_setDevice",
    "_cuda_set_sync_debug_mode",
    "_cuda_sleep",
    "_cuda_synchronize",
]

# What torch.version.cuda tells. The figures of the profiles are known to this version.
CUDA_VERSION = "12.8"
_ARCHITECTURES = "sm_70 sm_75 sm_80 sm_86 sm_90 compute_90"


@dataclasses.dataclass(frozen=True, repr=False)
class _CudaDeviceProperties(CardProperties):
    """What ``torch.cuda.get_device_properties`` returns. The capability is the profile's, or an A100's."""


def properties(index: int) -> _CudaDeviceProperties:
    """Returns the properties of a card. Raises RuntimeError if there is no such card."""
    return _CudaDeviceProperties(**figures_of(index))


def _cuda_init() -> None:
    if _cuda_isInBadFork():
        _C.lazy_init()  # raises
    if _C.device_count() == 0:
        try:
            _C.check_device(0)
        except RuntimeError as error:
            raise RuntimeError(
                "No CUDA GPUs are available: VDEV_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES hides all cards, "
                f"or the value of a variable is wrong. {error}"
            ) from None
    torch.cuda.default_generators = tuple(  # type: ignore[assignment]
        _C.default_generator(index) for index in range(_C.device_count())
    )


_cuda_isInBadFork = _C.is_in_bad_fork
_cuda_getDeviceCount = _C.device_count
_cuda_getDevice = _C.current_device
_cuda_sleep = _C.sleep


def _cuda_setDevice(index: int) -> None:
    torch.cuda._lazy_init()
    _C.set_device(index)


# Dynamo tells these two apart as objects.
def _cuda_exchangeDevice(index: int) -> int:
    if index >= 0:
        torch.cuda._lazy_init()
    return _C.exchange_device(index)


def _cuda_maybeExchangeDevice(index: int) -> int:
    return _C.exchange_device(index)


def _cuda_hasPrimaryContext(index: int) -> bool:
    _C.check_device(index)
    return _C.is_device_used(index)


def _cuda_synchronize() -> None:
    _C.synchronize(_C.current_device())


def _cuda_canDeviceAccessPeer(index: int, peer: int) -> bool:
    _C.check_device(index)
    _C.check_device(peer)
    return index != peer  # every card lies in memory that the process maps


def _cuda_getArchFlags() -> str:
    return _ARCHITECTURES


def _cuda_getCompiledVersion() -> int:
    major, minor = CUDA_VERSION.split(".")
    return int(major) * 1000 + int(minor) * 10


_cuda_get_sync_debug_mode = _C._get_sync_debug_mode
_cuda_set_sync_debug_mode = _C._set_sync_debug_mode


def install() -> None:
    """Rebinds what ``torch.cuda`` took from ``torch._C`` when it was imported."""
    cuda: Any = torch.cuda
    cuda._CudaDeviceProperties = _CudaDeviceProperties
    cuda._exchange_device = _cuda_exchangeDevice
    cuda._maybe_exchange_device = _cuda_maybeExchangeDevice
    cuda._is_in_bad_fork = _cuda_isInBadFork
    cuda._get_device_properties = properties
    # torch.cuda registers kernels in Triton when it is first used. No card can run them.
    cuda._queued_calls[:] = [
        queued for queued in cuda._queued_calls if queued[0] is not cuda._register_triton_kernels
    ]
    # Real GPUs of the machine do not count.
    cuda._device_count_nvml = lambda: -1
    torch._C._has_cuda = True
    torch.version.cuda = CUDA_VERSION
