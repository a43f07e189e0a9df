"""``torch._C._distributed_c10d._dump_nccl_trace``, which scripts call when a job hangs.

It tells the groups, their ranks, and the number of the last call of each. Which calls have begun or ended is
not recorded, and neither are the calls themselves: these are None and an empty list. The errors of vccl tell
what the ranks wait for (docs/errors.md).
"""

import json
import pickle
from typing import Any

import torch.distributed as dist

from vccl._groups.backends import vccl_backends

# The version of the format that torch 2.13 writes.
_VERSION = "2.10"


def _trace() -> dict[str, Any]:
    groups: dict[str, Any] = {}
    status: dict[str, Any] = {}
    for group in list(dist.distributed_c10d._world.pg_map):
        for backend in vccl_backends(group)[:1]:
            name = group.group_name
            ranks = dist.get_process_group_ranks(group)
            groups[name] = {"name": name, "desc": group.group_desc, "ranks": str(ranks)}
            status[name] = {
                "last_enqueued_collective": backend._get_sequence_number_for_group(),
                "last_started_collective": None,
                "last_completed_collective": None,
            }
    return {"version": _VERSION, "pg_config": groups, "pg_status": status}


def dump_nccl_trace(
    includeCollectives: bool | None = None,
    includeStackTraces: bool | None = None,
    onlyActive: bool | None = None,
) -> bytes:
    """Returns the pickled trace. Its ``entries`` are empty, whatever is asked for."""
    entries: dict[str, Any] = {"entries": []} if includeCollectives is not False else {}
    return pickle.dumps({**_trace(), **entries})


def dump_nccl_trace_json(includeCollectives: bool | None = None, onlyActive: bool | None = None) -> bytes:
    """Returns the trace as JSON. Its ``entries`` are empty, whatever is asked for."""
    entries: dict[str, Any] = {"entries": []} if includeCollectives is not False else {}
    return json.dumps({**_trace(), **entries}).encode()
