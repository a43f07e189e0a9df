"""The tables of ``vccl.top``, as plain text and for rich."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

_HEADS = ("RANK", "PID", "HOST", "CARD", "MEMORY", "STATE", "OPS", "SINCE", "CALL, OR PLACE")
_GROUP_HEADS = ("GROUP", "RANKS", "COLLECTIVES", "PER MINUTE", "BANDWIDTH")


def rank_rows(job: dict[str, Any]) -> list[tuple[str, ...]]:
    """Returns the cells of the job's ranks, by _HEADS."""
    return [
        (
            str(rank["rank"]),
            str(rank["pid"]),
            rank["host"],
            "CPU" if rank["card"] is None else str(rank["card"]),
            _bytes(rank["card_bytes"]),
            "lock held" if rank["python_lock"] and rank["state"] == "sleeps" else rank["state"],
            str(rank["operations"]),
            "" if rank["since_s"] is None else f"{rank['since_s']:.1f} s",
            rank["call"] or _place(rank["stack"]),
        )
        for rank in job["ranks"]
    ]


def group_rows(job: dict[str, Any]) -> list[tuple[str, ...]]:
    """Returns the cells of the job's groups, by _GROUP_HEADS."""
    return [
        (
            group["description"] or group["name"],
            _ranks(group["ranks"]),
            _sequence(group["sequence"]),
            str(group["collectives_per_minute"]),
            "" if group["bytes_per_s"] is None else f"{_bytes(round(group['bytes_per_s']))}/s",
        )
        for group in job["groups"]
    ]


def _ranks(ranks: list[int]) -> str:
    return ",".join(map(str, ranks)) if len(ranks) <= 8 else f"{len(ranks)} ranks"


def _sequence(sequence: dict[str, dict[str, int]]) -> str:
    """Returns "12", or "11 to 12" if ranks differ in what they have called."""
    called = sorted({entry["called"] for entry in sequence.values()})
    return "" if not called else f"{called[0]}" if len(called) == 1 else f"{called[0]} to {called[-1]}"


def _short(job: str) -> str:
    """Returns the beginning of a job's id. Before its first group a job has "of process 1234" instead."""
    return job if " " in job else job[:12]


def _place(stack: list[dict[str, Any]]) -> str:
    if not stack:
        return ""
    inner = stack[0]
    return f"{inner['function']} ({inner['file'].rpartition('/')[2]}:{inner['line']})"


def _bytes(count: int | None) -> str:
    if count is None:
        return ""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024  # type: ignore[assignment]
    return f"{count:.1f} GiB"


def _title(job: dict[str, Any]) -> str:
    programs = sorted({rank["program"] for rank in job["ranks"]})
    return f"job {_short(job['id'])}, {len(job['ranks'])} of {job['world_size']} ranks: {programs[0]}"


def _findings(job: dict[str, Any]) -> Iterable[str]:
    for unknown in job["unknown"]:
        ranks = unknown["ranks"]
        subject = f"Rank {ranks[0]} is" if len(ranks) == 1 else f"Ranks {_ranks(ranks)} are"
        why = "does not answer" if unknown["silent"] else "has no record"
        yield f"{subject} not shown: host {unknown['host']} {why}."
    for rank in job["ranks"]:
        if rank["faults"]:
            told = f"Faults of a plan have struck rank {rank['rank']}: {rank['faults']}"
            yield f"{told}, the last one {rank['last_fault']}."
    for finding in job["diagnosis"]:
        yield f"{finding['kind'].upper()}: {finding['text']}"
    if not job["diagnosis"]:
        yield "Nobody is waited for long."


def _plain_table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterable[str]:
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    for row in (heads, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def as_text(found: dict[str, Any]) -> str:
    """Returns everything as plain text."""
    lines = []
    for job in found["jobs"]:
        lines += [_title(job), "", *_plain_table(_HEADS, rank_rows(job)), ""]
        lines += [*_plain_table(_GROUP_HEADS, group_rows(job)), "", *_findings(job), ""]
    lines += [f"process {entry['pid']} cannot be read: {entry['text']}" for entry in found["unreadable"]]
    return "\n".join(lines) if lines else "No job of this user has a group of vccl."


def as_rich(found: dict[str, Any]) -> "RenderableType":
    """Returns everything for rich's console. Needs rich."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
        result = Table(*heads, box=None, header_style="reverse", pad_edge=False)
        for row in rows:
            result.add_row(*map(Text, row))
        return result

    parts: list[RenderableType] = []
    for job in found["jobs"]:
        style = "bold red" if job["diagnosis"] else "green"
        parts += [Text(_title(job), style="bold"), table(_HEADS, rank_rows(job)), Text()]
        parts += [table(_GROUP_HEADS, group_rows(job)), Text()]
        parts += [*(Text(line, style=style) for line in _findings(job)), Text()]
    parts += [Text(f"process {e['pid']} cannot be read: {e['text']}") for e in found["unreadable"]]
    return Group(*(parts or [Text("No job of this user has a group of vccl.")]))
