"""Tells and limits the memory of the cards, with the names and meanings that torch.cuda has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from vccl import _C

from ._device import DeviceLike, index_of
from .memory_history import (
    _allocation_traceback,
    _attach_out_of_memory_observer,
    _dump_snapshot,
    _get_memory_metadata,
    _record_memory_history,
    _set_memory_metadata,
    _snapshot,
    memory_snapshot,
)

__all__ = [
    "_allocation_traceback",
    "_attach_out_of_memory_observer",
    "_dump_snapshot",
    "_get_memory_metadata",
    "_record_memory_history",
    "_set_memory_metadata",
    "_snapshot",
    "empty_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]

_fractions: dict[int, float] = {}  # of the cards whose memory was limited


def empty_cache() -> None:
    """Gives the memory that the allocators of all cards keep for reuse back to the system."""
    torch.accelerator.empty_cache()


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """Returns the figures of torch.accelerator.memory_stats, and {} before any card was used."""
    return torch.accelerator.memory_stats(index_of(device))


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """Returns the same figures nested: ``{"allocated_bytes": {"all": {"current": ...}}}``."""
    if not torch._C._accelerator_isAllocatorInitialized():
        return {}
    return torch._C._accelerator_getDeviceStats(index_of(device))


def host_memory_stats() -> dict[str, Any]:
    """Returns the figures of pinned host memory: ``{"allocated_bytes.current": ...}`` and others.

    ``torch.cuda.host_memory_stats`` says what they mean.
    """

    def flat(prefix: str, figures: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, value in figures.items():
            if isinstance(value, dict):
                yield from flat(f"{prefix}{name}.", value)
            else:
                yield prefix + name, value

    return dict(sorted(flat("", host_memory_stats_as_nested_dict())))


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
    """Returns the bytes that live tensors take, each rounded up as the allocator does."""
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


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Returns the bytes that the allocator may still take from the card, and the card's capacity in bytes."""
    return torch.accelerator.get_memory_info(index_of(device))


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
        names += ["requested_bytes", "active_bytes", "inactive_split_bytes"]
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
