"""The functions of ``torch._C`` about devices, and the state that ``torch.cuda`` keeps of them."""

import dataclasses
import uuid
from typing import Any

import torch

from vccl import _C

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
# The capability of cards without a profile, and other figures of it. They are an A100's.
_DEFAULTS = {
    "major": 8,
    "minor": 0,
    "clock_rate": 1410000,
    "memory_clock_rate": 1593000,
    "memory_bus_width": 5120,
    "L2_cache_size": 40 << 20,
    "max_threads_per_multi_processor": 2048,
    "shared_memory_per_multiprocessor": 164 << 10,
}


@dataclasses.dataclass(frozen=True)
class _CudaDeviceProperties:
    """What ``torch.cuda.get_device_properties`` returns. Sizes are in bytes, clocks in kHz."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    L2_cache_size: int
    max_threads_per_multi_processor: int
    shared_memory_per_multiprocessor: int
    pci_bus_id: int
    uuid: uuid.UUID
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    max_threads_per_block: int = 1024
    pci_device_id: int = 0
    pci_domain_id: int = 0
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    warp_size: int = 32
    gcnArchName: str = ""

    @property
    def shared_memory_per_block_optin(self) -> int:
        return max(self.shared_memory_per_multiprocessor - 1024, self.shared_memory_per_block)

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


def properties(index: int) -> _CudaDeviceProperties:
    """Returns the properties of a card. Raises RuntimeError if there is no such card."""
    card = _C.device_properties(index)
    figures: dict[str, Any] = {**_DEFAULTS, **card.profile}
    return _CudaDeviceProperties(
        name=card.name,
        total_memory=card.total_memory,
        multi_processor_count=card.multi_processor_count,
        pci_bus_id=card.physical_index + 1,
        uuid=uuid.uuid5(uuid.NAMESPACE_OID, f"vccl card {card.physical_index}"),
        **figures,
    )


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
