"""Makes vccl the default backend of a group that was not asked for it by name alone.

The calls of a group that belong to no device (its name, hooks, DDP's logging) go to its default backend.
Torch chooses that by name: GLOO for ``init_process_group()`` without arguments, and none for
"cpu:gloo,vdev:vccl". A group of vccl then has no such backend, and DDP's constructor raises.
"""

from collections.abc import Callable
from typing import Any

from torch.distributed import distributed_c10d as c10d

from vccl._device_type import device_type
from vccl._groups.backends import vccl_backends
from vccl._torch_patches.distributed import new_group
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without='`init_process_group()` without arguments and "cpu:gloo,vdev:vccl" leave the group without a '
    "default backend: hooks warn, and DDP's constructor raises",
    until="2.14 is the oldest torch, which picks the default among the backends of the group",
    versions="<2.14",
    upstream=("pytorch/pytorch#189193", "pytorch/pytorch#179901"),
)


@PATCH.replaces(new_group.ATTRIBUTE, new_group.PARAMETERS)
def _new_process_group_helper(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    group, store = original(*args, **kwargs)
    backend = new_group.backend_of(args, kwargs)
    if type(group) is c10d.ProcessGroup and vccl_backends(group) and not _torch_chooses(backend):
        group._set_default_backend(c10d.ProcessGroup.BackendType.CUSTOM)
    return group, store


def _torch_chooses(backend: str) -> bool:
    """Returns whether torch finds the default by itself. It knows nccl, but not vccl."""
    return device_type() == "cuda" and "vccl" not in backend
