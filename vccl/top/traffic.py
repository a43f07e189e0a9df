"""What the flight recorders say of the last minute: bandwidth, and which rank the others waited for."""

import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch

_WINDOW_S = 60.0
# A rank is worth naming as slow if the others waited for it for this part of the window.
_SLOW_PART = 0.2


@dataclass
class Traffic:
    """What one group of a job did in the last minute.

    ``bytes`` and ``busy_s`` are sums over the collectives that all ranks have completed: of the longer side
    of each call, and of the time from the last rank's start to the last rank's end. ``lost_s`` has the
    seconds that the others waited for each rank, by its number in the job.
    """

    collectives: int = 0
    bytes: int = 0
    busy_s: float = 0.0
    lost_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def bytes_per_second(self) -> float | None:
        """The bandwidth while collectives ran, or None if none has ended."""
        return self.bytes / self.busy_s if self.busy_s > 0 else None


def of_job(dumps: dict[int, str]) -> dict[str, Traffic]:
    """Returns the traffic of a job's groups by their names.

    Args:
        dumps: the dumps of its ranks' flight recorders, as JSON, by rank.
    """
    calls: dict[tuple[str, int], dict[int, dict[str, Any]]] = defaultdict(dict)
    sizes: dict[str, int] = {}
    for rank, text in dumps.items():
        dump = json.loads(text)
        for name, config in dump["pg_config"].items():
            sizes[name] = int(config.get("ranks_cut_of") or len(json.loads(config["ranks"])))
        for entry in dump.get("entries", ()):
            if not entry["is_p2p"] and entry["time_discovered_started_ns"]:
                group = entry["process_group"][0]
                calls[group, entry["collective_seq_id"]][rank] = entry
    newest = max((e["time_created_ns"] for call in calls.values() for e in call.values()), default=0)
    result: dict[str, Traffic] = defaultdict(Traffic)
    for (group, _), call in calls.items():
        if len(call) == sizes.get(group) and len(call) > 1:
            _add(result[group], call, newest - _WINDOW_S * 1e9)
    return dict(result)


def _add(traffic: Traffic, call: dict[int, dict[str, Any]], since_ns: float) -> None:
    ends = [entry["time_discovered_completed_ns"] for entry in call.values()]
    if not all(ends) or max(ends) < since_ns:
        return
    starts = sorted((entry["time_discovered_started_ns"], rank) for rank, entry in call.items())
    (last, slowest), (before, _) = starts[-1], starts[-2]
    traffic.collectives += 1
    traffic.bytes += max(_bytes_of(entry) for entry in call.values())
    traffic.busy_s += (max(ends) - last) / 1e9
    traffic.lost_s[slowest] += (last - before) / 1e9


def _bytes_of(entry: dict[str, Any]) -> int:
    return max(
        sum(math.prod(size) * _item_size(dtype) for size, dtype in zip(sizes, dtypes, strict=False))
        for sizes, dtypes in (
            (entry["input_sizes"], entry["input_dtypes"]),
            (entry["output_sizes"], entry["output_dtypes"]),
        )
    )


def _item_size(dtype: str) -> int:
    """Returns the bytes of an element of a dtype that is named as in C++, such as "Float"."""
    names = {
        "Byte": "uint8",
        "Char": "int8",
        "ComplexHalf": "complex32",
        "ComplexFloat": "complex64",
        "ComplexDouble": "complex128",
    }
    found = getattr(torch, names.get(dtype, dtype.lower()), None)
    return found.itemsize if isinstance(found, torch.dtype) else 1


def slow_ranks(traffic: dict[str, Traffic]) -> list[dict[str, Any]]:
    """Returns a finding for each rank that the others have waited for much in the last minute."""
    lost: dict[int, float] = defaultdict(float)
    calls = sum(entry.collectives for entry in traffic.values())
    for entry in traffic.values():
        for rank, seconds in entry.lost_s.items():
            lost[rank] += seconds
    return [
        {
            "kind": "slow",
            "culprits": [rank],
            "text": f"In the last minute the other ranks waited {seconds:.1f} s for rank {rank}, "
            f"{1000 * seconds / calls:.1f} ms a collective.",
        }
        for rank, seconds in sorted(lost.items(), key=lambda item: -item[1])
        if seconds >= _SLOW_PART * _WINDOW_S
    ]
