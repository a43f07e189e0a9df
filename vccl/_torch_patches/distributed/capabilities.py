"""Lets groups of gloo and of the fake backend be made where the default group is bound to a card.

After ``init_process_group(device_id=torch.device("vdev", 0))`` torch binds every further group to that
device, and raises for a backend whose table of devices does not hold the device's type. The tables name
cuda and xpu. This patch adds vdev to the tables while such a group is made. gloo refuses the tensors of
vdev afterwards as before.

A strict group of vccl serves no CPU tensors, as one of NCCL does not (VCCL_STRICT): while it is made, the
table of vccl holds the cards alone.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.distributed import Backend
from torch.distributed import distributed_c10d as c10d

from vccl import _C
from vccl._device_type import device_type
from vccl._groups.backends import vccl_backends
from vccl._torch_patches.distributed import new_group
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="a group of gloo or of the fake backend cannot be made once `init_process_group` was given a "
    '`device_id`: "No backend type associated with device type vdev"',
    until="the tables of devices are open to other devices",
    upstream=("pytorch/pytorch#195260", "pytorch/pytorch#184010"),
)


@PATCH.replaces(new_group.ATTRIBUTE, new_group.PARAMETERS)
def _new_process_group_helper(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _without_cpu(new_group.backend_of(args, kwargs)):
        return _open_to_cards(original, *args, **kwargs)


@contextlib.contextmanager
def _without_cpu(backend: str) -> Iterator[None]:
    """Takes the CPU out of vccl's table if a group that is made with `backend` is to be strict."""
    tables = Backend.backend_capability
    if backend != "vccl" or not _C._is_strict(by_default=False):
        yield
        return
    devices = tables["vccl"]
    tables["vccl"] = [device_type()]
    try:
        yield
    finally:
        tables["vccl"] = devices


def _open_to_cards(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    world = c10d.GroupMember.WORLD
    bound = world.bound_device_id if world is not None and vccl_backends(world) else None
    if bound is None or bound.type != device_type():
        return original(*args, **kwargs)
    if device_type() == "cuda" and new_group.backend_of(args, kwargs) == "cpu:gloo":
        # Such a group must not serve CUDA, not even in name (vccl/cuda/gloo.py): it is bound to no card.
        return original(*args, **{**kwargs, "device_id": None})
    tables = Backend.backend_capability
    named: dict[str, list[str]] = {name: tables[name] for name in ("gloo", "fake") if name in tables}
    tables.update({name: [*devices, device_type()] for name, devices in named.items()})
    try:
        return original(*args, **kwargs)
    finally:
        tables.update(named)
