"""Memory pools of the program's own, and memory without a tensor, as torch.cuda has them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

import torch

from vccl import _C

from ._arguments import whole_number
from ._device import DeviceLike, index_of
from .memory_history import PoolId, memory_snapshot

_OWN_ALLOCATOR = (
    "The cards' memory cannot come from an allocator of your own: other processes map it, and graphs and "
    "streams depend on when it is reused. VDEV_MEMORY and set_per_process_memory_fraction() limit it."
)


class MemPool:
    """Holds memory of the current card apart from the memory of other allocations (``use_mem_pool``).

    Its segments stay reserved, and are used for nothing else, as long as the object lives. Then they go back
    to the system, but for the blocks of live tensors. Graphs can be captured into it (``pool=pool.id``).

    Args:
        allocator: None, or the allocator of the cards, which makes the pool's memory symmetric
            (``torch.distributed._symmetric_memory.get_mempool_allocator``).
        use_on_oom: whether an allocation outside of the pool that finds no memory may take a free block of
            the pool.
        no_split: whether each allocation takes a whole segment.

    Raises:
        NotImplementedError: for another ``allocator``.
    """

    def __init__(self, allocator: object = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        if allocator is not None and not _C._is_cards_allocator(allocator):
            raise NotImplementedError(f"MemPool(allocator=...): {_OWN_ALLOCATOR}")
        self._pool = _C.MemPool(use_on_oom, no_split)
        if allocator is not None:
            _C._add_symmetric_pool(self._pool.device, self._pool.id[1])

    @property
    def id(self) -> PoolId:
        """Returns the name of the pool, which graphs and ``memory_snapshot(mempool_id=...)`` take."""
        return self._pool.id

    @property
    def device(self) -> int:
        """Returns the index of the pool's card."""
        return self._pool.device

    def use_count(self) -> int:
        """Returns how many use the pool: this object, ``use_mem_pool`` blocks and graphs."""
        return self._pool.use_count()

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """Returns the pool's segments (``memory_snapshot``)."""
        return memory_snapshot(self.id, include_traces)


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: DeviceLike = None) -> Iterator[None]:
    """Makes the calling thread's allocations come from ``pool`` in a ``with`` block.

    Other threads, such as those of backward(), allocate as ever. What a graph captures comes from the pool of
    the graph.

    Args:
        pool: the pool.
        device: the card whose allocations are meant, by default the current card.
    """
    index, number = index_of(device), pool.id[1]
    _C._begin_pool(index, number)
    try:
        yield
    finally:
        _C._end_pool(index, number)


def caching_allocator_alloc(
    size: int, device: DeviceLike = None, stream: torch.Stream | int | None = None
) -> int:
    """Allocates memory without a tensor, for libraries that want addresses.

    Args:
        size: the bytes; 0 for 0 bytes.
        device: the card, by default the current card.
        stream: a stream of the card, or its ``native_handle``, or 0 for the default stream; by default the
            current stream.

    Returns:
        The address, for ``caching_allocator_delete``.

    Raises:
        torch.OutOfMemoryError: there is no room.
        TypeError: ``stream`` is something else, or ``size`` is no int.
        ValueError: ``stream`` belongs to another card, or ``size`` is negative.
        RuntimeError: no stream of the card has this ``native_handle``.
    """
    index, size = index_of(device), whole_number(size, "size")
    if stream is None:
        stream = torch.accelerator.current_stream(index)
    if isinstance(stream, torch.Stream):
        if stream.device_index != index:
            raise ValueError(
                f"the stream is one of card {stream.device_index}, and the memory of card {index}"
            )
        return _C._raw_allocate(index, size, stream.stream_id)
    if not isinstance(stream, int):
        raise TypeError(
            f"stream must be a torch.Stream or the native_handle of one, got {type(stream).__name__}"
        )
    handle = whole_number(stream, "stream")
    return _C._raw_allocate(index, size, _C._stream_at(index, handle) if handle else 0)


def caching_allocator_delete(mem_ptr: int) -> None:
    """Frees the memory of ``caching_allocator_alloc``, for its stream to reuse. Does nothing for 0.

    Raises:
        TypeError, ValueError: ``mem_ptr`` is no address.
        RuntimeError: no live memory begins at that address.
    """
    _C._raw_free(whole_number(mem_ptr, "mem_ptr"))


def caching_allocator_enable(value: bool = True) -> None:
    """Does nothing for True, because the caching allocator is always on.

    Raises:
        NotImplementedError: for False.
    """
    if not value:
        raise NotImplementedError(
            "caching_allocator_enable(False): the cards have no allocator without a cache, because queued "
            "operators may still use memory that was freed. empty_cache() returns what is free."
        )


@contextlib.contextmanager
def caching_allocator_disabled() -> Iterator[None]:
    """Raises NotImplementedError, as ``caching_allocator_enable(False)`` does."""
    caching_allocator_enable(False)
    yield


def change_current_allocator(allocator: object) -> NoReturn:
    """Raises NotImplementedError."""
    raise NotImplementedError(f"change_current_allocator(): {_OWN_ALLOCATOR}")


class VDEVPluggableAllocator:
    """Stands for ``torch.cuda.memory.CUDAPluggableAllocator``.

    Raises:
        NotImplementedError: always.
    """

    def __init__(self, path_to_so_file: str, alloc_fn_name: str, free_fn_name: str) -> None:
        raise NotImplementedError(f"VDEVPluggableAllocator(): {_OWN_ALLOCATOR}")
