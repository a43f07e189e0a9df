"""What tests of symmetric memory have in common."""

import functools
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

OPERATORS = torch.ops.symm_mem
PROMPTLY = 30.0


def world_name() -> str:
    return dist.group.WORLD.group_name


def empty(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return symmetric.empty(*size, dtype=dtype, device=torch.device("vdev", torch.vdev.current_device()))


def shared(*size: int, dtype: torch.dtype = torch.float32):
    """A symmetric tensor of the world, and its handle."""
    tensor = empty(*size, dtype=dtype)
    return tensor, symmetric.rendezvous(tensor, dist.group.WORLD)


def settled(test):
    """Ends a test once all ranks have let go of the memory, so that none of it is left on a card."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        test(*args, **kwargs)
        dist.barrier()
        torch.vdev.empty_cache()

    return run


def error_of(call) -> str:
    began = time.monotonic()
    with pytest.raises((RuntimeError, ValueError)) as caught:
        call()
        torch.accelerator.synchronize()
    assert time.monotonic() - began < PROMPTLY
    return str(caught.value)
