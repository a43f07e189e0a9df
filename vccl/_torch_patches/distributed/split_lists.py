"""Finds out in split_group that ranks have given different lists.

Torch gives a backend only the list of the rank's own group. NCCL splits a group by a color in one call of all
ranks. vccl makes each part by itself, and its ranks would wait in vain for a rank that is in another part.
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from vccl._groups.backends import vccl_backends
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="ranks that give split_group different lists wait for each other until the timeout",
    until="a backend is given all lists of split_group",
)


_FIRST = "parent_pg=..., split_ranks=..., timeout=..., pg_options=..., group_desc=..."


@PATCH.replaces(
    "torch.distributed.distributed_c10d:split_group",
    {"<2.13": f"({_FIRST})", ">=2.13": f"({_FIRST}, backend=...)"},
    aliases=["torch.distributed:split_group"],
)
def _split_group(
    original: Callable[..., Any], parent_pg: Any = None, split_ranks: Any = None, *args: Any, **kwargs: Any
) -> Any:
    parent = parent_pg or dist.group.WORLD
    ours = vccl_backends(parent)
    if ours and split_ranks:
        world = dist.get_process_group_ranks(parent)
        lists = [sorted(int(rank) for rank in ranks) for ranks in split_ranks]
        if all(0 <= rank < len(world) for ranks in lists for rank in ranks):
            numbers = [[world[rank] for rank in ranks] for ranks in lists]
            ours[0]._agree_on_call("split", f"split_group({lists})", numbers)
    return original(parent_pg, split_ranks, *args, **kwargs)
