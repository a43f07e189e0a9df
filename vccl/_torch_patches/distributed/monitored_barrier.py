"""Makes ``monitored_barrier`` of groups of vccl the one in vccl/_groups/monitored_barrier.py.

Torch refuses every backend but gloo by name. Once it asks the backend, it asks the CPU's: groups that serve
cards alone need the patch until that has changed too.
"""

import datetime
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

from vccl._groups import monitored_barrier
from vccl._groups.backends import vccl_backends
from vccl._torch_patches.registry import Patch

if TYPE_CHECKING:
    from vccl._C import ProcessGroupVccl

PATCH = Patch(
    __name__,
    without="`monitored_barrier` refuses every backend but gloo by name",
    until="torch calls the `monitoredBarrier` of the group's backend, "
    "also where the group has none for the CPU",
    upstream=("pytorch/pytorch#189070",),
)


# A barrier has to tell groups of one name apart that follow each other at one store.
@PATCH.replaces("torch.distributed.distributed_c10d:_register_process_group", "(group_name, group)")
def _register_process_group(original: Callable[..., None], group_name: str, group: ProcessGroup) -> None:
    original(group_name, group)
    if _backends_of(group):
        monitored_barrier.prepare(group)


def _backends_of(group: ProcessGroup) -> "list[ProcessGroupVccl]":
    """Returns the backends that are vccl's, but for those of cards in groups of gloo (vccl/cuda/gloo.py)."""
    return [backend for backend in vccl_backends(group) if not backend.options._stands_for_gloo]


def _refuse_if_strict(backends: "list[ProcessGroupVccl]") -> None:
    if backends[0]._is_strict:
        here = backends[0]._ranks_text([backends[0].rank()])
        raise ValueError(
            f"monitored_barrier is only implemented for GLOO backend: {here} called it in group "
            f"{backends[0]._group_name}. This is an error on GPUs. The cards could do it, and do with "
            'VCCL_STRICT=0; to run on GPUs, make a group with new_group(backend="gloo") for it.'
        )


@PATCH.replaces(
    "torch.distributed.distributed_c10d:monitored_barrier",
    "(group=..., timeout=..., wait_all_ranks=...)",
    aliases=["torch.distributed:monitored_barrier"],
)
def _monitored_barrier_of_module(
    original: Callable[..., None],
    group: ProcessGroup | None = None,
    timeout: datetime.timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    backends = _backends_of(c10d._get_default_group() if group is None else group)
    if backends:
        _refuse_if_strict(backends)
        return monitored_barrier.monitored_barrier(group, timeout, wait_all_ranks)
    return original(group, timeout, wait_all_ranks)


@PATCH.replaces("torch.distributed:ProcessGroup.monitored_barrier", "(self, timeout=..., wait_all_ranks=...)")
def _monitored_barrier_of_group(
    original: Callable[..., None], self: ProcessGroup, *args: Any, **kwargs: Any
) -> None:
    if backends := _backends_of(self):
        _refuse_if_strict(backends)
        return monitored_barrier.monitored_barrier(self, *args, **kwargs)
    return original(self, *args, **kwargs)
