"""The functions of ``torch._C`` about the memory of the cards."""

import sys
from typing import Any

import torch
from torch.cuda._utils import _get_device_index

from vccl import _C
from vccl.vdev import memory, memory_history

__all__ = [
    "_cuda_allocationTraceback",
    "_cuda_attach_out_of_memory_observer",
    "_cuda_cudaCachingAllocator_enable",
    "_cuda_cudaCachingAllocator_is_enabled",
    "_cuda_emptyCache",
    "_cuda_getAllocatorBackend",
    "_cuda_getMemoryFraction",
    "_cuda_getMemoryMetadata",
    "_cuda_hostMemoryStats",
    "_cuda_ipc_collect",
    "_cuda_isHistoryEnabled",
    "_cuda_memorySnapshot",
    "_cuda_memoryStats",
    "_cuda_record_memory_history",
    "_cuda_record_memory_history_legacy",
    "_cuda_resetAccumulatedHostMemoryStats",
    "_cuda_resetAccumulatedMemoryStats",
    "_cuda_resetPeakHostMemoryStats",
    "_cuda_resetPeakMemoryStats",
    "_cuda_setMemoryFraction",
    "_cuda_setMemoryMetadata",
]


def _cuda_emptyCache() -> None:
    torch._C._accelerator_emptyCache()


def _cuda_memoryStats(index: int) -> dict[str, Any]:
    """Returns the nested figures: {"allocated_bytes": {"all": {"current": ...}}}."""
    return memory.memory_stats_as_nested_dict(index)


def _cuda_resetAccumulatedMemoryStats(index: int) -> None:
    torch._C._accelerator_resetAccumulatedStats(index)


def _cuda_resetPeakMemoryStats(index: int) -> None:
    torch._C._accelerator_resetPeakStats(index)


def _cuda_setMemoryFraction(fraction: float, index: int) -> None:
    memory.set_per_process_memory_fraction(fraction, index)


def _cuda_getMemoryFraction(index: int) -> float:
    return memory.get_per_process_memory_fraction(index)


def _cuda_getAllocatorBackend() -> str:
    return "native"


def _cuda_cudaCachingAllocator_is_enabled() -> bool:
    return True


def _cuda_cudaCachingAllocator_enable(enabled: bool) -> None:
    memory.caching_allocator_enable(enabled)


def _cuda_ipc_collect() -> None:
    _C._collect_shared_blocks()


def _cuda_hostMemoryStats() -> dict[str, Any]:
    return _C._pinned_memory_stats()


def _cuda_resetAccumulatedHostMemoryStats() -> None:
    _C._reset_accumulated_pinned_memory_stats()


def _cuda_resetPeakHostMemoryStats() -> None:
    _C._reset_peak_pinned_memory_stats()


def _cuda_isHistoryEnabled() -> bool:
    return _C._is_memory_history_recorded()


def _cuda_record_memory_history(
    enabled: str | None,
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: list[str] | None = None,
) -> None:
    memory_history.record_history(
        enabled,
        context,
        stacks,
        max_entries,
        None,
        clear_history,
        compile_context,
        global_record_annotations,
        skip_actions,
    )


def _cuda_record_memory_history_legacy(
    enabled: bool,
    record_context: bool = True,
    max_entries: int = 1,
    record_context_of_events: bool = False,
    *others: Any,
) -> None:
    memory_history.record_history_legacy(
        enabled, record_context, max_entries, record_context_of_events, None, *others
    )


def _cuda_memorySnapshot(pool: tuple[int, int] | tuple[int, int, bool] | None) -> dict[str, Any]:
    return memory_history.take_snapshot(pool and pool[:2], pool is None or len(pool) == 2 or pool[2])


_cuda_allocationTraceback = _C._allocation_traceback
_cuda_attach_out_of_memory_observer = _C._attach_out_of_memory_observer
_cuda_getMemoryMetadata = _C._get_memory_metadata
_cuda_setMemoryMetadata = _C._set_memory_metadata


def device_memory_used(device: Any = None) -> int:
    """Returns the bytes that all processes together have reserved of the card."""
    return memory.device_memory_used(_get_device_index(device, optional=True))


def list_gpu_processes(device: Any = None) -> str:
    """Returns what ``torch.vdev.list_gpu_processes`` returns."""
    return memory.list_gpu_processes(_get_device_index(device, optional=True))


def install() -> None:
    """Replaces the functions of ``torch.cuda`` that ask the GPU's driver about memory."""
    cuda: Any = torch.cuda
    cuda.device_memory_used = device_memory_used
    cuda.list_gpu_processes = list_gpu_processes
    cuda.memory.list_gpu_processes = list_gpu_processes
