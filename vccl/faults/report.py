"""Prints the faults that have struck."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path

from .plans import Struck

_MOST_LINES = 100


def table(found: Sequence[Struck]) -> str:
    """Returns a line for each fault, and one before them. Those that could do nothing come last."""
    lines = _part([each for each in found if not each.why_not], "struck")
    return "\n".join(lines + _part([each for each in found if each.why_not], "could do nothing"))


def _part(found: Sequence[Struck], what: str) -> list[str]:
    if not found:
        return []
    lines = [f"[vccl] {len(found)} fault{'s' * (len(found) != 1)} of the plan {what}:"]
    lines += [_line(each) for each in found[:_MOST_LINES]]
    if len(found) > _MOST_LINES:
        lines.append(f"  and {len(found) - _MOST_LINES} more")
    return lines


def _line(struck: Struck) -> str:
    time = datetime.datetime.fromtimestamp(struck.time).isoformat(" ", "milliseconds")[11:]
    number = f" {struck.sequence}" if struck.sequence else ""
    group = f" of group {struck.group}" if struck.group else ""
    return (
        f"  {time} rank {struck.rank}: {struck.kind} {struck.at} {struck.place}{number}{group}, "
        f"step {struck.step} (rule {struck.rule + 1})" + (f": {struck.why_not}" if struck.why_not else "")
    )


def read_log(path: Path) -> list[Struck]:
    """Returns what the ranks have written to the file of VCCL_FAULTS_LOG, in the order of time."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
            entry.pop("pid")
            found.append(Struck(**entry))
        except (ValueError, TypeError, KeyError):  # a rank died while it wrote
            continue
    return sorted(found, key=lambda struck: struck.time)
