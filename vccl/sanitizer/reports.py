"""Turns what the detector has found into reports: texts, lines of JSON and exceptions."""

from __future__ import annotations

import _thread
import json
import os
import sys
from typing import Any

from vccl._cards.process_sharing import own_rank

from . import events, missing, names
from .settings import Settings
from .suppressions import Suppressions

Report = dict[str, Any]
"""A report. ``kind`` is "read after write", "write after read", "write after write", "use after free", "read
of unwritten memory", "read of freed memory", "write to freed memory", "wait for an event that was never
recorded" or "useless wait". ``tensor`` has ``shape``,
``dtype``, ``name`` (of a variable, or None) and ``allocated`` ("file:line", or None). ``first`` and
``second`` are the two accesses, in the order of the program's calls, each with ``op``, ``stream``, ``rank``,
``file`` and ``line``; ``first`` is None where there is only one. ``missing`` says which wait is missing, and
``count`` how often the pair of lines was found."""

_UNRECORDED = "wait for an event that was never recorded"
_ACCESS = ("op", "stream", "rank", "file", "line")


class RaceError(RuntimeError):
    """Two accesses to the same memory have no order, and at least one of them writes."""


class Found:
    """What was found. ``reports`` has one report for each pair of lines. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.reports: list[Report] = []
        self.waits = events.Waits()
        self._suppressions = Suppressions.read(settings.suppressions)
        self._by_lines: dict[tuple[Any, ...], Report] = {}
        # Not one of threading, which would order the threads that report (threads.py).
        self._lock = _thread.allocate_lock()

    def begin_forked_child(self) -> None:
        """Call this in a forked child: another thread of the parent may have held the lock."""
        self._lock = _thread.allocate_lock()

    @property
    def count(self) -> int:
        """How many pairs of lines are reported that are errors. A wait that can go is none."""
        return sum(report["kind"] != "useless wait" for report in self.reports)

    @property
    def suppressed(self) -> dict[str, int]:
        """How many finds each line of the suppressions has kept from being reported."""
        return dict(self._suppressions.counts)

    def add(self, raw: dict[str, Any]) -> None:
        """Takes what the detector has found, within the call of the second access.

        Raises:
            RaceError: the settings ask for it.
        """
        report = self._add(raw)
        if report is not None and self.settings.raises and report["kind"] != "useless wait":
            raise RaceError(text_of(report))

    def end(self) -> None:
        """Reports what is known only now that nothing follows: waits for events that nobody has recorded."""
        for raw in self.waits.end():
            self._add(raw)

    def _add(self, raw: dict[str, Any]) -> Report | None:
        """Returns the report, unless it is suppressed."""
        report = report_of(raw)
        lines = (_place(report[side]) for side in ("first", "second"))
        key = (None if report["first"] else report["kind"], *lines)
        with self._lock:
            if known := self._by_lines.get(key):
                known["count"] += 1
                is_new = False
            else:
                if self._suppressions.match(raw):
                    return None
                report["tensor"]["name"] = names.of_tensor(raw["address"], raw["shape"])
                self._by_lines[key] = report
                self.reports.append(report)
                is_new = True
        if is_new and self.settings.prints:
            print(text_of(report), file=sys.stderr, flush=True)
        if is_new and self.settings.log:
            _append(self.settings.log, report)
        return report


def report_of(raw: dict[str, Any]) -> Report:
    """Returns the report for what the detector has found."""
    return {
        "kind": _kind(raw),
        "tensor": {
            "shape": list(raw["shape"]),
            "dtype": raw["dtype"],
            "name": None,
            "allocated": _line_of(raw["allocated"]),
        },
        "first": _access(raw["first"]),
        "second": _access(raw["second"]),
        "missing": missing.text_of(raw),
        "waited_ms": raw["waited_ns"] / 1e6,
        "count": 1,
    }


def text_of(report: Report) -> str:
    """Returns the report as it is printed."""
    tensor, first, second = report["tensor"], report["first"], report["second"]
    who = f"rank {second['rank']}: " if second["rank"] is not None else ""
    if report["kind"] == "useless wait":
        return (
            f"vccl sanitizer: {who}useless wait: {second['op']} at {_line_of(second)} orders nothing that "
            f"was not "
            f"ordered before. The host waited {report['waited_ms']:.1f} ms in it."
        )
    if report["kind"] == _UNRECORDED:
        return (
            f"vccl sanitizer: {who}{_UNRECORDED}: it orders nothing\n"
            f"  wait: {_text_of_access(second)}\n"
            f"  missing: {report['missing']}"
        )
    name = f"'{tensor['name']}', " if tensor["name"] else ""
    shape = "x".join(map(str, tensor["shape"])) or "one element"
    lines = [f"vccl sanitizer: {who}{report['kind']}"]
    if first:
        lines[0] += ": nothing orders the second of these accesses after the first"
    lines.append(f"  tensor: {name}{tensor['dtype']} {shape}" + _allocated(tensor))
    if first:
        lines.append(f"  first:  {_text_of_access(first)}")
        lines.append(f"  second: {_text_of_access(second)}")
    else:
        lines.append(f"  access: {_text_of_access(second)}")
    lines.append(f"  missing: {report['missing']}")
    return "\n".join(lines)


def _kind(raw: dict[str, Any]) -> str:
    if raw["what"] == "useless":
        return "useless wait"
    if raw["what"] == "unwritten":
        return "read of unwritten memory"
    if raw["what"] == "unrecorded":
        return _UNRECORDED
    if raw["what"] == "gone":
        return "write to freed memory" if raw["second_writes"] else "read of freed memory"
    if raw["was_freed"]:
        return "use after free"
    return " after ".join("write" if raw[side] else "read" for side in ("second_writes", "first_writes"))


def _access(raw: dict[str, Any] | None) -> dict[str, Any] | None:
    if raw is None:
        return None
    rank = own_rank()
    own = {"rank": rank if rank >= 0 else None, **raw}
    return {key: own[key] for key in _ACCESS}


def _text_of_access(access: dict[str, Any]) -> str:
    return f"{access['op']} on {access['stream']}, at {_line_of(access)}"


def _allocated(tensor: dict[str, Any]) -> str:
    return f", allocated at {tensor['allocated']}" if tensor["allocated"] else ""


def _line_of(place: dict[str, Any] | None) -> str | None:
    return f"{place['file'] or 'no line of Python'}:{place['line']}" if place else None


def _place(access: dict[str, Any] | None) -> tuple[str, int] | None:
    return (access["file"], access["line"]) if access else None


def _append(path: str, report: Report) -> None:
    rank = os.environ.get("RANK")
    with open(f"{path}.{rank if rank else os.getpid()}", "a", encoding="utf-8") as file:
        file.write(json.dumps(report) + "\n")
