"""Makes the members of a group agree on its name where torch derives the name from their ranks.

``split_group``, ``shrink_group`` and ``new_group(use_local_synchronization=True)`` put the number of groups
that this rank is in into the name. That number differs from rank to rank once a group was made without some
of them. The members then look for each other under different keys, and wait until the timeout. This patch
counts the groups that were made of the same ranks instead.

Since 2.14 that number also counts the groups that get such a name, and still is the name of other groups.
Then a plain ``new_group`` of all ranks waits in vain, once a group was made without some of them. This patch
leaves the number alone where a name does not need it.
"""

import collections
import hashlib
import weakref
from collections.abc import Callable
from typing import Any

from torch.distributed import distributed_c10d as c10d

from vccl._groups.backends import vccl_backends
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="members of a split group name it differently once some rank is in more groups than another, and "
    "wait for each other until the timeout",
    until="the number in the name is the same on all ranks",
    upstream=("pytorch/pytorch#189073", "pytorch/pytorch#190431"),
)

# For each default group, how many groups were made of the same ranks.
_made: weakref.WeakKeyDictionary[Any, collections.Counter[str]] = weakref.WeakKeyDictionary()


@PATCH.replaces("torch.distributed.distributed_c10d:_hash_ranks_to_str", "(ranks)")
def _hash_ranks_to_str(original: Callable[..., str], ranks: list[int]) -> str:
    world = c10d.GroupMember.WORLD
    if not vccl_backends(world):
        return original(ranks)
    counts = _made.setdefault(world, collections.Counter())
    key = "_".join(map(str, ranks))
    counts[key] += 1
    return hashlib.sha1(f"{key}_{counts[key]}".encode(), usedforsecurity=False).hexdigest()


@PATCH.replaces(
    "torch.distributed.distributed_c10d:_process_group_name", "(ranks, use_hashed_name)", versions=">=2.14"
)
def _process_group_name(original: Callable[..., str], ranks: list[int], use_hashed_name: bool) -> str:
    number = c10d._world.group_count
    name = original(ranks, use_hashed_name)
    if use_hashed_name and vccl_backends(c10d.GroupMember.WORLD):
        c10d._world.group_count = number
    return name
