"""Memory pools of the program's own, memory without a tensor, and settings, in pose."""

import sys
from typing import Any

import torch

from vccl import _C
from vccl.vdev import memory_pools

__all__ = [
    "_cuda_beginAllocateCurrentThreadToPool",
    "_cuda_cudaCachingAllocator_raw_alloc",
    "_cuda_cudaCachingAllocator_raw_delete",
    "_cuda_cudaCachingAllocator_set_allocator_settings",
    "_cuda_endAllocateToPool",
    "_cuda_releasePool",
]

PoolId = tuple[int, int]


def _cuda_beginAllocateCurrentThreadToPool(index: int, pool: PoolId) -> None:
    _C._begin_pool(index, pool[1])


def _cuda_endAllocateToPool(index: int, pool: PoolId) -> None:
    """Leaves the pool with one user more than before it began, whom ``_cuda_releasePool`` takes away."""
    _C._retain_pool(index, pool[1])
    _C._end_pool(index, pool[1])


def _cuda_releasePool(index: int, pool: PoolId) -> None:
    _C._release_pool(index, pool[1])


def _cuda_cudaCachingAllocator_raw_alloc(size: int, stream: int) -> int:
    return memory_pools.caching_allocator_alloc(size, _C.current_device(), stream)


_cuda_cudaCachingAllocator_raw_delete = memory_pools.caching_allocator_delete
_cuda_cudaCachingAllocator_set_allocator_settings = torch._C._accelerator_setAllocatorSettings


def install() -> None:
    """Gives ``torch.cuda.memory`` what it took from torch at its import, when it was empty."""
    module = sys.modules["torch.cuda.memory"]
    for name in __all__:
        if name in vars(module):
            setattr(module, name, globals()[name])
    # torch.cuda.MemPool is derived from an empty type of torch's, whose constructor raises.
    base: Any = torch._C._MemPool

    def initialise(
        self: Any, allocator: object, is_user_created: bool, use_on_oom: bool, no_split: bool
    ) -> None:
        memory_pools.MemPool.__init__(self, allocator, use_on_oom, no_split)

    base.__new__ = lambda cls, *args, **kwargs: object.__new__(cls)
    base.__init__ = initialise
    for name in ("id", "device", "use_count"):
        setattr(base, name, vars(memory_pools.MemPool)[name])
