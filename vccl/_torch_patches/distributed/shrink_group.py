"""Lets ``shrink_group`` find vccl, and registers the shrunk group as what it is.

Where a group is bound to no device, torch looks for its backend of cuda, then of the CPU, and raises for a
group that serves vdev alone. Torch registers the shrunk backend for one device only, and as GLOO: the shrunk
group would lose the CPU or the cards, and be taken for gloo. Torch also takes the excluded ranks, which are
ranks of the group, for global ones, so that a shrunk subgroup gets wrong members.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

from vccl._device_type import backend_name
from vccl._groups.backends import names_vccl, vccl_backends
from vccl._torch_patches.registry import Patch

if TYPE_CHECKING:
    from vccl._C import ProcessGroupVccl

PATCH = Patch(
    __name__,
    without="`shrink_group` refuses groups that serve cards alone, loses the other devices, takes the "
    "result for gloo, and miscounts the ranks of subgroups",
    until="`shrink_group` goes by the group's backends and ranks",
    upstream=("pytorch/pytorch#164518",),
)


@PATCH.replaces("torch.distributed.distributed_c10d:_validate_shrink_backend_requirements", "(group_info)")
def _validate_shrink_backend_requirements(original: Callable[..., Any], group_info: dict[str, Any]) -> Any:
    backends = vccl_backends(group_info["process_group"])
    return backends[0] if backends else original(group_info)


@PATCH.replaces(
    "torch.distributed.distributed_c10d:_finalize_shrunk_group",
    "(group_info, excluded_ranks_set, new_backend)",
)
def _finalize_shrunk_group(
    original: Callable[..., ProcessGroup],
    group_info: dict[str, Any],
    excluded_ranks_set: set[int],
    new_backend: Any,
) -> ProcessGroup:
    if new_backend.name() == backend_name():
        ranks = c10d.get_process_group_ranks(group_info["process_group"])
        excluded_ranks_set = {ranks[rank] for rank in excluded_ranks_set}
    return original(group_info, excluded_ranks_set, new_backend)


@PATCH.replaces(
    "torch.distributed.distributed_c10d:_create_shrunk_process_group",
    "(new_backend, remaining_ranks, metadata, is_default_group)",
)
def _create_shrunk_process_group(
    original: Callable[..., ProcessGroup],
    new_backend: Any,
    remaining_ranks: list[int],
    metadata: dict[str, Any],
    is_default_group: bool,
) -> ProcessGroup:
    if new_backend.name() != backend_name():
        return original(new_backend, remaining_ranks, metadata, is_default_group)
    return _shrunk_group(new_backend, metadata, is_default_group)


def _shrunk_group(backend: "ProcessGroupVccl", metadata: dict[str, Any], is_default: bool) -> ProcessGroup:
    """Returns a group of the shrunk backend, for the devices of the group that was shrunk.

    Makes gloo's backends anew, and leaves out devices whose backend cannot be shrunk.
    """
    types = c10d.ProcessGroup.BackendType
    name = metadata["new_group_name"]
    store = c10d.PrefixStore(f"{name}/", metadata["store"].clone())
    rank, size = backend.rank(), backend.size()
    group = c10d.ProcessGroup(store, rank, size)
    if metadata["bound_device_id"] is not None:
        group.bound_device_id = metadata["bound_device_id"]
    served = {}
    for device, kind in c10d.BackendConfig(metadata["backend_config"]).get_device_backend_map().items():
        if names_vccl(kind):
            group._register_backend(torch.device(device), types.CUSTOM, backend)
        elif kind == "gloo":
            gloo_store = c10d.PrefixStore(f"{device}/", store)
            gloo = c10d.ProcessGroupGloo(gloo_store, rank, size, timeout=backend.options._timeout)
            group._register_backend(torch.device(device), types.GLOO, gloo)
        else:
            continue
        served[device] = kind
    metadata["backend_config"] = ",".join(f"{device}:{kind}" for device, kind in served.items())
    group._set_default_backend(types.CUSTOM)
    group._set_group_name(name)
    group._set_group_desc("default:shrunken" if is_default else f"{metadata['original_group_name']}:shrunk")
    return group
