"""Tells and limits the memory of the cards, with the names and meanings that torch.cuda has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from typing_extensions import deprecated

from vccl import _C

from ._device import DeviceLike, index_of
from .memory_history import (
    _allocation_traceback as _allocation_traceback,
)
from .memory_history import (
    _attach_out_of_memory_observer as _attach_out_of_memory_observer,
)
from .memory_history import (
    _dump_snapshot as _dump_snapshot,
)
from .memory_history import (
    _get_memory_metadata as _get_memory_metadata,
)
from .memory_history import (
    _record_memory_history as _record_memory_history,
)
from .memory_history import (
    _set_memory_metadata as _set_memory_metadata,
)
from .memory_history import (
    _snapshot as _snapshot,
)
from .memory_history import (
    memory_snapshot,
)
from .memory_pools import (
    MemPool,
    VDEVPluggableAllocator,
    caching_allocator_alloc,
    caching_allocator_delete,
    caching_allocator_disabled,
    caching_allocator_enable,
    change_current_allocator,
    use_mem_pool,
)

# All of these are names of torch.vdev, too.
__all__ = [
    "MemPool",
    "VDEVPluggableAllocator",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "caching_allocator_disabled",
    "caching_allocator_enable",
    "change_current_allocator",
    "device_memory_used",
    "empty_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "list_gpu_processes",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "use_mem_pool",
]

_fractions: dict[int, float] = {}  # of the cards whose memory was limited


def empty_cache() -> None:
    """Gives the memory that the allocators of all cards keep for reuse back to the system."""
    torch.accelerator.empty_cache()


def _flat(figures: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in figures.items():
        # As torch.cuda does: the pool (0, 2) is called 0_2.
        name = "_".join(map(str, key)) if isinstance(key, tuple) else key
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """Returns the figures of a card, by names such as ``"allocated_bytes.all.current"``.

    The names and meanings are those of ``torch.cuda.memory_stats``. ``scratch_bytes`` comes on top: it counts
    the memory that kernels allocate while they run. Returns {} before any card was used.
    """
    return dict(sorted(_flat(memory_stats_as_nested_dict(device))))


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """Returns the same figures nested: ``{"allocated_bytes": {"all": {"current": ...}}}``."""
    if not torch._C._accelerator_isAllocatorInitialized():
        return {}
    index = index_of(device)
    return {**torch._C._accelerator_getDeviceStats(index), **_C._further_memory_stats(index)}


def host_memory_stats() -> dict[str, Any]:
    """Returns the figures of pinned host memory: ``{"allocated_bytes.current": ...}`` and others.

    ``torch.cuda.host_memory_stats`` says what they mean.
    """
    return dict(sorted(_flat(host_memory_stats_as_nested_dict())))


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Returns the figures of host_memory_stats() nested: ``{"allocated_bytes": {"current": ...}}``."""
    return _C._pinned_memory_stats()


def reset_peak_host_memory_stats() -> None:
    """Sets the peaks of pinned host memory to the current values."""
    _C._reset_peak_pinned_memory_stats()


def reset_accumulated_host_memory_stats() -> None:
    """Sets the totals of pinned host memory (allocated, freed) and the counts to zero."""
    _C._reset_accumulated_pinned_memory_stats()


def get_allocator_backend() -> str:
    """Returns ``"native"``: the cards have an allocator of their own."""
    return "native"


def memory_allocated(device: DeviceLike = None) -> int:
    """Returns the bytes that live tensors take, each rounded up as the allocator does.

    Memory that kernels allocate while they run does not count. The figure of that memory is
    ``memory_stats()["scratch_bytes.all.current"]``.
    """
    return torch.accelerator.memory_allocated(index_of(device))


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Returns the peak of memory_allocated() since the start or reset_peak_memory_stats()."""
    return torch.accelerator.max_memory_allocated(index_of(device))


def memory_reserved(device: DeviceLike = None) -> int:
    """Returns the bytes that the allocator holds, whether they are in use or kept for reuse."""
    return torch.accelerator.memory_reserved(index_of(device))


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Returns the peak of memory_reserved() since the start or reset_peak_memory_stats()."""
    return torch.accelerator.max_memory_reserved(index_of(device))


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Sets the peaks to the current values."""
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Sets the totals (allocated, freed) and the counts of retries and failures to zero."""
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


@deprecated("torch.vdev.memory_cached is called torch.vdev.memory_reserved now", category=FutureWarning)
def memory_cached(device: DeviceLike = None) -> int:
    """Returns memory_reserved()."""
    return memory_reserved(device)


@deprecated("torch.vdev.max_memory_cached is called max_memory_reserved now", category=FutureWarning)
def max_memory_cached(device: DeviceLike = None) -> int:
    """Returns max_memory_reserved()."""
    return max_memory_reserved(device)


@deprecated("torch.vdev.reset_max_memory_allocated() resets all peaks", category=FutureWarning)
def reset_max_memory_allocated(device: DeviceLike = None) -> None:
    """Does what reset_peak_memory_stats() does."""
    reset_peak_memory_stats(device)


@deprecated("torch.vdev.reset_max_memory_cached() resets all peaks", category=FutureWarning)
def reset_max_memory_cached(device: DeviceLike = None) -> None:
    """Does what reset_peak_memory_stats() does."""
    reset_peak_memory_stats(device)


def _set_allocator_settings(env: str) -> None:
    """Sets what ``PYTORCH_ALLOC_CONF`` sets, for all cards: see docs/memory.md.

    Raises:
        ValueError: torch cannot parse ``env``, or the cards cannot follow it.
    """
    torch._C._accelerator_setAllocatorSettings(env)


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Returns the bytes that can still be allocated on the card, and its capacity, in bytes.

    The first is the memory that the card has left for all processes, or that the machine can still give if
    that is less (docs/memory.md).
    """
    return torch.accelerator.get_memory_info(index_of(device))


def device_memory_used(device: DeviceLike = None) -> int:
    """Returns the bytes that all processes together have reserved of the card."""
    return sum(size for *_, size in _C._card_users(index_of(device)))


def list_gpu_processes(device: DeviceLike = None) -> str:
    """Returns a text with a line for each process that has reserved memory of the card.

    It has the form of ``torch.cuda.list_gpu_processes``, and gives the number of the physical card.
    """
    index = index_of(device)
    lines = [f"GPU:{_C.device_properties(index).physical_index}"]
    for pid, foreign, _name, size in _C._card_users(index):
        line = f"process {pid:>10d} uses {size / 2**20:>12.3f} MB GPU memory"
        lines.append(line + " (of another pid namespace)" if foreign else line)
    return "\n".join(lines if len(lines) > 1 else [*lines, "no processes are running"])


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limits the memory that the allocator takes to a fraction of the card's capacity.

    An allocation beyond the limit raises torch.OutOfMemoryError.

    Args:
        fraction: from 0 to 1.
        device: the card, and the current one if None.

    Raises:
        TypeError: ``fraction`` is not a float.
        ValueError: ``fraction`` is below 0 or above 1.
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    index = index_of(device)
    _C.set_memory_limit(index, int(_C.device_properties(index).total_memory * fraction))
    _fractions[index] = fraction


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """Returns the fraction that set_per_process_memory_fraction() has set, or 1.0."""
    index = index_of(device)
    _C.check_device(index)
    return _fractions.get(index, 1.0)


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """Returns a small table of the main figures. All figures in bytes are in it unless ``abbreviated``."""
    index = index_of(device)
    stats = memory_stats(index)
    names = ["allocated_bytes", "reserved_bytes"]
    if not abbreviated:
        names += ["scratch_bytes", "requested_bytes", "active_bytes", "inactive_split_bytes"]
    lines = [
        f"vdev:{index} memory, MiB",
        f"{'':<22}{'current':>12}{'peak':>12}{'allocated':>14}{'freed':>14}",
    ]
    for name in names:
        current, peak, allocated, freed = (
            stats.get(f"{name}.all.{kind}", 0) / 2**20 for kind in ("current", "peak", "allocated", "freed")
        )
        lines.append(f"{name:<22}{current:>12.1f}{peak:>12.1f}{allocated:>14.1f}{freed:>14.1f}")
    lines.append(f"retries: {stats.get('num_alloc_retries', 0)}, out of memory: {stats.get('num_ooms', 0)}")
    return "\n".join(lines)
