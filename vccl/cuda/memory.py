"""The functions of ``torch._C`` about the memory of the cards."""

from typing import Any

import torch

from vccl import _C
from vccl._no_gpu import NoGpuError
from vccl.cuda import refused

__all__ = [
    "_cuda_cudaCachingAllocator_enable",
    "_cuda_cudaCachingAllocator_is_enabled",
    "_cuda_emptyCache",
    "_cuda_getAllocatorBackend",
    "_cuda_getMemoryFraction",
    "_cuda_hostMemoryStats",
    "_cuda_ipc_collect",
    "_cuda_isHistoryEnabled",
    "_cuda_memoryStats",
    "_cuda_record_memory_history",
    "_cuda_record_memory_history_legacy",
    "_cuda_resetAccumulatedHostMemoryStats",
    "_cuda_resetAccumulatedMemoryStats",
    "_cuda_resetPeakHostMemoryStats",
    "_cuda_resetPeakMemoryStats",
    "_cuda_setMemoryFraction",
]


def _cuda_emptyCache() -> None:
    torch._C._accelerator_emptyCache()


def _cuda_memoryStats(index: int) -> dict[str, Any]:
    """Returns the nested figures: {"allocated_bytes": {"all": {"current": ...}}}."""
    return torch._C._accelerator_getDeviceStats(index)


def _cuda_resetAccumulatedMemoryStats(index: int) -> None:
    torch._C._accelerator_resetAccumulatedStats(index)


def _cuda_resetPeakMemoryStats(index: int) -> None:
    torch._C._accelerator_resetPeakStats(index)


_fractions: dict[int, float] = {}


def _cuda_setMemoryFraction(fraction: float, index: int) -> None:
    _C.set_memory_limit(index, int(_C.device_properties(index).total_memory * fraction))
    _fractions[index] = fraction


def _cuda_getMemoryFraction(index: int) -> float:
    _C.check_device(index)
    return _fractions.get(index, 1.0)


def _cuda_getAllocatorBackend() -> str:
    return "native"


def _cuda_cudaCachingAllocator_is_enabled() -> bool:
    return True


def _cuda_cudaCachingAllocator_enable(enabled: bool) -> None:
    if not enabled:
        raise RuntimeError(
            "torch.cuda.caching_allocator_enable(False): the cards have no allocator without a cache."
        )


def _cuda_ipc_collect() -> None:
    _C._collect_shared_blocks()


def _cuda_hostMemoryStats() -> dict[str, Any]:
    return _C._pinned_memory_stats()


def _cuda_resetAccumulatedHostMemoryStats() -> None:
    _C._reset_accumulated_pinned_memory_stats()


def _cuda_resetPeakHostMemoryStats() -> None:
    _C._reset_peak_pinned_memory_stats()


# Nobody records the history of allocations. torch asks whether somebody does, and programs switch it off in
# passing.
def _cuda_isHistoryEnabled() -> bool:
    return False


def _cuda_record_memory_history(enabled: str | None, *args: object) -> None:
    if enabled is not None:
        raise NoGpuError("torch.cuda.memory._record_memory_history()", refused.HISTORY)


def _cuda_record_memory_history_legacy(enabled: bool, *args: object) -> None:
    _cuda_record_memory_history("all" if enabled else None)
