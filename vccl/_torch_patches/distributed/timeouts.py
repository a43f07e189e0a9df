"""Lets ``_set_pg_timeout`` reach vccl, and gives further groups the timeout of the default group.

DDP and users of TorchElastic call ``_set_pg_timeout``, which before torch 2.14 knows ProcessGroupNCCL and
ProcessGroupGloo by class, and warns for every other backend that it has changed nothing.

``new_group`` and the others call ``_get_default_timeout`` where they are given no timeout, and torch
returns a constant of 30 minutes whatever timeout the default group has.
"""

import datetime
import warnings
from collections.abc import Callable

from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

from vccl._groups.backends import names_vccl, vccl_backends
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="`_set_pg_timeout` warns and changes nothing, and groups for which no timeout is given get 30 "
    "minutes instead of the default group's timeout",
    until="the default group's timeout counts for other groups, and 2.14 is the oldest torch, whose "
    "`_set_pg_timeout` calls `ProcessGroup.set_timeout`",
    upstream=("pytorch/pytorch#158128",),
)


@PATCH.replaces("torch.distributed.distributed_c10d:_get_default_timeout", "(backend)")
def _get_default_timeout(original: Callable[..., datetime.timedelta], backend: str) -> datetime.timedelta:
    world = c10d._world.default_pg
    backends = vccl_backends(world) if world is not None and names_vccl(backend) else []
    return backends[0].options._timeout if backends else original(backend)


@PATCH.replaces(
    "torch.distributed.distributed_c10d:_set_pg_timeout", "(timeout, group=...)", versions="<2.14"
)
def _set_pg_timeout(
    original: Callable[..., None], timeout: datetime.timedelta, group: ProcessGroup | None = None
) -> None:
    backends = vccl_backends(group or c10d._get_default_group())
    with warnings.catch_warnings():
        if backends:
            warnings.filterwarnings("ignore", "Set timeout is now only supported")
        original(timeout, group)
    for backend in backends:
        backend._set_default_timeout(timeout)
