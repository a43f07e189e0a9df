"""Lets the gloo group that TORCH_DISTRIBUTED_DEBUG=DETAIL puts beside a backend end without the GIL.

Python destroys a group without the GIL, but a DDP model with it, and the model may be the group's last owner.
Gloo's destructor then joins its thread. That thread takes the GIL where it is the last to have an object of
Python, such as the thread-local state that an operation keeps. If it has not done that yet, both wait for
ever. With this patch the backend vccl owns the gloo group until its own end, and lets it go without the GIL.
"""

import datetime
from collections.abc import Callable
from typing import Any

from torch.distributed import Backend, PrefixStore, Store
from torch.distributed import distributed_c10d as c10d

from vccl._C import ProcessGroupVccl
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="with TORCH_DISTRIBUTED_DEBUG=DETAIL a DDP model that ends after its group may wait for ever for "
    "a thread of gloo that needs the GIL",
    until="torch destroys DDP's reducer without the GIL",
)


@PATCH.replaces(
    "torch.distributed.distributed_c10d:_create_process_group_wrapper",
    "(wrapped_pg, store_prefix, store, rank, world_size, timeout=...)",
)
def _create_process_group_wrapper(
    original: Callable[..., Backend],
    wrapped_pg: Backend,
    store_prefix: str,
    store: Store,
    rank: int,
    world_size: int,
    timeout: datetime.timedelta = c10d.default_pg_timeout,
) -> Backend:
    if not isinstance(wrapped_pg, ProcessGroupVccl) or not c10d.is_gloo_available():
        return original(wrapped_pg, store_prefix, store, rank, world_size, timeout)
    own_store = PrefixStore(f"{c10d.PG_WRAPPER_STORE_PREFIX}:{store_prefix}", store)
    helper = c10d.ProcessGroupGloo(own_store, rank, world_size, timeout=timeout)
    wrapped_pg._keep(helper)
    wrapper: Any = c10d._ProcessGroupWrapper(wrapped_pg, helper)  # for torch's stubs, it is no Backend
    return wrapper
