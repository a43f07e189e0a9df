"""The function of torch that makes every process group. Several patches wrap it."""

from collections.abc import Mapping, Sequence
from typing import Any

ATTRIBUTE = "torch.distributed.distributed_c10d:_new_process_group_helper"
_FIRST = (
    "group_size, group_rank, global_ranks_in_group, backend, store, group_name, backend_options=..., "
    "timeout=..., pg_tag=..., device_id=..., group_desc=..."
)
PARAMETERS = {"<2.14": f"({_FIRST})", ">=2.14": f"({_FIRST}, enable_reconfigure=...)"}


def backend_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Returns the argument ``backend`` of a call, in lower case."""
    return str(kwargs["backend"] if "backend" in kwargs else args[3]).lower()
