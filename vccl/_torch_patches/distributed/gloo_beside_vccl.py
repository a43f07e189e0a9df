"""Keeps ``split_group`` from reading beyond the end of a vector, in gloo's half of "cpu:gloo,vdev:vccl".

Torch gives gloo no list of ranks for a default group, and gloo works the list out by itself only for the
first group with gloo of the process. Splitting a default group that is made after another group with gloo
ends in a segmentation fault. That concerns every default group that is made a second time, and with
TORCH_DISTRIBUTED_DEBUG=DETAIL every default group, because its helper groups are gloo's.
"""

from collections.abc import Callable
from typing import Any

from vccl._groups.backends import vccl_backends
from vccl._torch_patches.distributed import new_group
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without='splitting "cpu:gloo,vdev:vccl" ends in a segmentation fault unless it is the first group with '
    "gloo in the process",
    until="2.14 is the oldest torch, which always gives gloo its ranks",
    versions="<2.14",
)


@PATCH.replaces(new_group.ATTRIBUTE, new_group.PARAMETERS)
def _new_process_group_helper(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    group, store = original(*args, **kwargs)
    if vccl_backends(group):
        for backend in map(group._get_backend, group._device_types):
            backend = getattr(backend, "wrapped_pg", backend)
            if backend.name() == "gloo" and not backend.options.global_ranks_in_group:
                backend.options.global_ranks_in_group = list(range(group.size()))
    return group, store
