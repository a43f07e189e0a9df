"""Lets a group go on after an exception inside a coalescing manager.

Torch's manager has no ``finally``. After an exception the group goes on collecting, in torch's own list and
in the backend, and every later collective is held back without a word. That is so with every backend. This
patch ends the collecting for groups of vccl.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

from vccl._groups.backends import vccl_backends
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="a coalescing manager that is left by an exception leaves the group coalescing for ever",
    until="the manager ends what it has begun",
)


@PATCH.replaces(
    "torch.distributed.distributed_c10d:_coalescing_manager",
    "(group=..., device=..., async_ops=...)",
    aliases=["torch.distributed:_coalescing_manager"],
)
@contextlib.contextmanager
def _coalescing_manager(
    original: Callable[..., contextlib.AbstractContextManager["c10d._CoalescingManager"]],
    group: ProcessGroup | None = None,
    device: torch.device | None = None,
    async_ops: bool = False,
) -> Iterator["c10d._CoalescingManager"]:
    entered = False
    try:
        with original(group, device, async_ops) as manager:
            entered = True
            yield manager
    except BaseException:
        if entered:
            group = group or c10d._get_default_group()
            backends = vccl_backends(group)
            for backend in backends:
                backend._cancel_coalescing()
            if backends:
                c10d._world.pg_coalesce_state.pop(group, None)
        raise
