"""Merges the traces of all ranks into one file, on one clock.

    python -m vccl.merge_traces rank0.json rank1.json.gz -o all.json

The inputs are the files of ``torch.profiler.profile.export_chrome_trace()``, one file for each rank. In
the result every process has its rank in its name. Ranks of one host share a clock. If the traces are of
several hosts, their times are moved to one clock by the collectives that ranks of both have recorded, and the
command says by how much, and how exactly that is known.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vccl import _trace_clocks

_NAMES_OF_PROCESSES = ("process_name", "process_labels", "process_sort_index")

Trace = dict[str, Any]


def read_trace(path: Path) -> Trace:
    """Reads one trace.

    Raises ValueError if it is no trace of torch's profiler, and OSError if it cannot be read.
    """
    data = path.read_bytes()
    try:
        trace = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a complete JSON file: {error}") from error
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ValueError(f"{path} is not a trace: it has no list 'traceEvents'")
    if not isinstance(trace.get("baseTimeNanoseconds"), int):
        raise ValueError(f"{path} does not say when its clock began: it has no 'baseTimeNanoseconds'")
    return trace


def ranks_of(traces: Sequence[Trace]) -> list[int]:
    """Returns each trace's rank, or its place in the list if no trace names a rank.

    Raises ValueError if only some traces name a rank, or if two name the same.
    """
    ranks = [(trace.get("distributedInfo") or {}).get("rank") for trace in traces]
    if all(rank is None for rank in ranks):
        return list(range(len(traces)))
    if None in ranks:
        raise ValueError(
            f"trace {ranks.index(None) + 1} names no rank, and others do: write each trace while the "
            "process group exists"
        )
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"two traces are of the same rank: in their order, they are of ranks {ranks}")
    return [int(rank) for rank in ranks if rank is not None]


def merge(traces: Sequence[Trace]) -> Trace:
    """Returns one trace with the events of all, in the order of the ranks. Raises what ranks_of() raises."""
    by_rank = sorted(zip(ranks_of(traces), traces, strict=True), key=lambda pair: pair[0])
    clocks = _trace_clocks.compare([trace for _, trace in by_rank])
    base = min(trace["baseTimeNanoseconds"] for trace in traces)
    events: list[Trace] = []
    processes = 0
    for rank, trace in by_rank:
        # Times of events are in microseconds.
        shift = (trace["baseTimeNanoseconds"] - base + clocks[_trace_clocks.name_of(trace)].shift) / 1000
        # Two ranks may have the same numbers of cards, of processes (in containers) and of arrows.
        numbers: dict[Any, int] = {}
        names: dict[Any, list[str]] = {}
        for event in trace["traceEvents"]:
            pid = event.get("pid")
            number = numbers.setdefault(pid, processes + len(numbers))
            if event.get("name") in _NAMES_OF_PROCESSES and event.get("ph") == "M":
                if text := event.get("args", {}).get("name") or event.get("args", {}).get("labels"):
                    names.setdefault(pid, []).append(str(text))
                continue
            moved = {**event, "pid": number}
            if "ts" in event:
                moved["ts"] = event["ts"] + shift
            if event.get("ph") in ("s", "t", "f"):
                moved["id"] = f"{rank}:{event.get('id')}"
            events.append(moved)
        for pid, number in numbers.items():
            name = " ".join([f"rank {rank}:", *names.get(pid, [str(pid)])])
            events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}})
            order = {"sort_index": number}
            events.append({"ph": "M", "name": "process_sort_index", "pid": number, "args": order})
        processes += len(numbers)
    return {
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base,
        "clocks": _trace_clocks.about(clocks),
        "traceEvents": events,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line. Returns the exit code, which is 2 if a file is bad."""
    parser = argparse.ArgumentParser(prog="python -m vccl.merge_traces", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE", help="a .json or .json.gz file")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the result, .json or .json.gz")
    args = parser.parse_args(argv)
    try:
        if args.output.resolve() in [path.resolve() for path in args.traces]:
            raise ValueError(f"{args.output} is also an input")
        merged = merge([read_trace(path) for path in args.traces])
        text = json.dumps(merged).encode()
        args.output.write_bytes(gzip.compress(text) if args.output.suffix == ".gz" else text)
    except (OSError, ValueError) as error:
        print(f"merge_traces: {error}", file=sys.stderr)
        return 2
    print(f"{len(args.traces)} traces are in {args.output}; {merged['clocks']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
