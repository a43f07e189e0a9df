"""Compares the clocks of several hosts by the collectives that the traces of their ranks have in common.

No rank ends an all_reduce before every rank has begun it. So a collective that two ranks have recorded bounds
from both sides by how much their clocks differ. Within the bounds the ends tell, which are nearly
simultaneous.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Trace = dict[str, Any]
_Spans = dict[tuple[Any, ...], tuple[int, int]]

# Every rank's part depends on every other's. In pose they have NCCL's names.
_MUTUAL = {
    "all_reduce",
    "allreduce",
    "all_gather",
    "all_gather_into_tensor",
    "_allgather_base",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "_reduce_scatter_base",
}
_KEY = ("Process Group Name", "Process Group Ranks", "Collective name", "Seq")


@dataclass(frozen=True)
class Clock:
    """The findings about one clock. Times are in nanoseconds."""

    host: str
    shift: float = 0.0  # what is added to its times
    error: float | None = 0.0  # by how much they may then be off; None if nothing is known
    collectives: int = 0  # by which that is known

    def text(self, reference: str) -> str:
        if self.error is None:
            return f"those of host {self.host} could not be compared, and may be off by anything"
        return (
            f"those of host {self.host} were moved by {self.shift / 1e6:+.3f} ms, right to "
            f"{self.error / 1e6:.3f} ms by {self.collectives} collectives"
        )


def name_of(trace: Trace) -> str | None:
    """Returns what tells a trace's clock from others, or None for a trace that does not say.

    That is the boot of the kernel whose clock it is, which traces of cards have, or else the host's name.
    """
    return trace.get("vccl_clock") or trace.get("host_name")


def compare(traces: Sequence[Trace]) -> dict[str | None, Clock]:
    """Returns what is known of each clock. Times of all are moved to those of the first trace's."""
    clocks: dict[str | None, Clock] = {}
    spans = [_spans_of(trace) for trace in traces]
    first = name_of(traces[0])
    for trace in traces:
        name = name_of(trace)
        if name in clocks:
            continue
        host = str(trace.get("host_name", "unknown"))
        if name == first:
            clocks[name] = Clock(host)
            continue
        ours, theirs = (
            [found for found, other in zip(spans, traces, strict=True) if name_of(other) == wanted]
            for wanted in (first, name)
        )
        clocks[name] = _compared(host, [(a, b) for a in ours for b in theirs])
    return clocks


def about(clocks: Mapping[str | None, Clock]) -> str:
    """Returns what a reader of times of these clocks has to know."""
    if None in clocks:
        return "not every trace says which host's clock it has: times of different hosts may not agree"
    reference, *others = clocks.values()
    if not others:
        return "all times are of one clock"
    texts = [clock.text(reference.host) for clock in others]
    return f"times are of the clock of host {reference.host}; {'; '.join(texts)}"


def _spans_of(trace: Trace) -> _Spans:
    """Returns when the rank was in each collective."""
    spans: _Spans = {}
    again = set()
    for event in trace["traceEvents"]:
        args = event.get("args") or {}
        if event.get("ph") != "X" or "Seq" not in args or "bus bandwidth (GB/s)" not in args:
            continue
        if args.get("Collective name") not in _MUTUAL or not args.get("bytes"):
            continue
        key = tuple(args.get(part) for part in _KEY)
        # In whole numbers, because a float holds nanoseconds since 1970 only to 256 of them.
        begin = trace["baseTimeNanoseconds"] + round(event["ts"] * 1000)
        # A graph's collective has one number in all replays.
        again |= {key} & spans.keys()
        spans[key] = begin, begin + round(event["dur"] * 1000)
    return {key: span for key, span in spans.items() if key not in again}


def _compared(host: str, pairs: Sequence[tuple[_Spans, _Spans]]) -> Clock:
    """Returns what the collectives of the pairs tell of the second one's clock."""
    least, most = float("-inf"), float("inf")
    apart = []
    for ours, theirs in pairs:
        for key in ours.keys() & theirs.keys():
            (begin, end), (their_begin, their_end) = ours[key], theirs[key]
            least, most = max(least, begin - their_end), min(most, end - their_begin)
            apart.append(end - their_end)
    if not apart:
        return Clock(host, error=None)
    # Clocks that drift apart during the trace leave no shift that fits all: the bounds change places.
    least, most = sorted((least, most))
    # Ranks end a collective at nearly the same time, whoever has waited for whom.
    shift = min(max(statistics.median(apart), least), most)
    return Clock(host, shift, max(most - shift, shift - least), len(apart))
