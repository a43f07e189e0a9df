"""The functions of ``torch._C._distributed_c10d`` that show and reset the flight recorder of NCCL's groups.

They show the recorder of vccl as ProcessGroupNCCL would have written it: NCCL's version, groups that are
numbered from 0, and times only for groups whose times the program has asked for
(``_enable_collectives_timing()``, TORCH_NCCL_ENABLE_TIMING). ``_dump_fr_trace`` shows all that is known.
"""

import json
import pickle
from typing import Any

import torch.distributed as dist

from vccl import _C
from vccl._groups.backends import vccl_backends

# The number of the first entry since the last reset.
_first_record = 0


def dump_nccl_trace(
    includeCollectives: bool | None = None,
    includeStackTraces: bool | None = None,
    onlyActive: bool | None = None,
) -> bytes:
    """Returns the trace as a pickle. Arguments that are None count as True, True and False."""
    dump = pickle.loads(_C._dump_flight_recorder(True, includeStackTraces is not False, False))
    return pickle.dumps(_as_of_nccl(dump, includeCollectives, onlyActive))


def dump_nccl_trace_json(includeCollectives: bool | None = None, onlyActive: bool | None = None) -> bytes:
    """Returns the trace as JSON, without stacks. Arguments that are None count as True and False."""
    dump = json.loads(_C._dump_flight_recorder_json(True, False))
    trace = _as_of_nccl(dump, includeCollectives, onlyActive)
    if not trace.get("entries"):
        trace.pop("entries", None)
    return json.dumps(trace).encode()


def reset_recording() -> None:
    """Leaves what was recorded so far out of later traces, whose entries are numbered from 0 again."""
    global _first_record
    entries = pickle.loads(_C._dump_flight_recorder(True, False, False))["entries"]
    _first_record = max((entry["record_id"] + 1 for entry in entries), default=_first_record)


def _as_of_nccl(
    dump: dict[str, Any], with_entries: bool | None = None, only_active: bool | None = None
) -> dict[str, Any]:
    """Returns the dump of vccl's recorder as that of ProcessGroupNCCL's."""
    from vccl.cuda.nccl import VERSION

    timed = _timed_groups()
    entries = dump.pop("entries", [])
    numbers = {str(entry["pg_id"]): entry["process_group"][0] for entry in entries}
    status = {}
    for number, progress in dump["pg_status"].items():
        if numbers.get(number) not in timed:
            started = progress["last_started_collective"]
            progress["last_started_collective"] = type(started)(-1)  # a text in JSON
        status[str(int(number) - 1)] = progress
    trace = {**dump, "pg_status": status, "comm_lib_version": ".".join(map(str, VERSION))}
    if with_entries is not False:
        trace["entries"] = [
            _entry_of_nccl(entry, entry["process_group"][0] in timed)
            for entry in entries
            if entry["record_id"] >= _first_record and not (only_active and entry["state"] == "completed")
        ]
    return trace


def _timed_groups() -> set[str]:
    """Returns the names of the groups whose times the program has asked for."""
    groups = list(dist.distributed_c10d._world.pg_map)
    return {group.group_name for group in groups if any(backend._timing for backend in vccl_backends(group))}


def _entry_of_nccl(entry: dict[str, Any], timed: bool) -> dict[str, Any]:
    changed = {"pg_id": entry["pg_id"] - 1, "record_id": entry["record_id"] - _first_record}
    if entry["is_p2p"]:  # NCCL notes the tensor of a message as its input and as its output
        for what in ("sizes", "dtypes"):
            tensor = entry[f"input_{what}"] or entry[f"output_{what}"]
            changed |= {f"input_{what}": tensor, f"output_{what}": tensor}
    if timed:
        return {**entry, **changed}
    started = entry["time_discovered_started_ns"]
    changed["time_discovered_started_ns"] = 0 if started == 0 else None
    if entry["state"] == "started":
        changed["state"] = "scheduled"
    return {key: value for key, value in {**entry, **changed}.items() if key != "duration_ms"}
