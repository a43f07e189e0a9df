"""Measures steps on one card beside the same steps on the plain CPU, and steps of several ranks.

    python -m vccl.bench steps                                 # everything, some minutes
    python -m vccl.bench steps --cases lstm,gru,launch --json figures.json
    python -m vccl.bench steps --cases ddp,fsdp2 --ranks 2,4

The card and the CPU take turns of some milliseconds in one process, with one thread each. A ratio is that of
two turns that follow each other, and the median of those ratios counts, so that a machine that changes its
speed affects both. What both have computed is compared bit by bit, and a difference ends the command with 1.

``overlap`` is a training loop in which the host works about as long in Python as the card computes. It is
measured with VDEV_LAUNCH_BLOCKING=1 and without, in processes that take turns. ``ddp`` and ``fsdp2`` give
the milliseconds of a step, for a comparison of two builds.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from vccl.bench import overlap, rank_steps
from vccl.bench.report import machine
from vccl.bench.turns import HEAD, Contest, Row, compare
from vccl.bench.workloads import (
    LAUNCHES,
    LESSONS,
    READ_SELDOM,
    Foreach,
    Launches,
    TinyOperators,
    Training,
)

BLOCK = 31 << 20  # bytes, just below the most that malloc() keeps


def contests() -> dict[str, Contest]:
    """Returns what is measured in this process, by name. The part before "/" is what --cases chooses by."""
    found = {}
    for name, make in LESSONS.items():
        found[name] = Contest(partial(Training, make, 1))
        found[f"{name}/{READ_SELDOM}"] = Contest(partial(Training, make, READ_SELDOM), READ_SELDOM)
    for size in (64, 2048):
        found[f"tiny/{size}"] = Contest(partial(TinyOperators, size))
    found["foreach"] = Contest(Foreach)
    found["launch/in-place"] = Contest(partial(Launches, True), LAUNCHES, exact=True, more=10)
    found["launch/fresh"] = Contest(partial(Launches, False), LAUNCHES, exact=True, more=10)
    return found


CONTESTS = contests()
CASES = [*dict.fromkeys(name.partition("/")[0] for name in CONTESTS), "overlap", *rank_steps.KINDS]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m vccl.bench steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", default=",".join(CASES), help=f"some of {','.join(CASES)} (default: all)")
    parser.add_argument("--turns", type=int, default=40, help="of each device and case (default: 40)")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks of ddp and fsdp2 (default: 2,4)")
    parser.add_argument("--small", action="store_true", help="tiny models: tries everything out in seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes the figures there too")
    args = parser.parse_args(argv)
    args.cases = args.cases.split(",")
    unknown = [name for name in args.cases if name not in CASES]
    if unknown:
        parser.error(f"--cases: no case is called {', '.join(unknown)}; there are {', '.join(CASES)}")
    if args.turns < 1:
        parser.error(f"--turns {args.turns} is less than 1")
    try:
        args.ranks = [int(number) for number in args.ranks.split(",")]
    except ValueError:
        parser.error(f"--ranks {args.ranks} is not a list of numbers such as 2,4")
    return args


def main(argv: Sequence[str]) -> int:
    """Runs the command. Returns 0, or 1 if results of the card differ from those of the CPU."""
    args = parse(argv)
    figures: dict = {"machine": machine(), "small": args.small, "rows": [], "overlap": None, "ranks": []}
    rows = list(compare_cases(args))
    figures["rows"] = [asdict(row) for row in rows]
    right = all(row.different == 0 for row in rows)
    if "overlap" in args.cases:
        found = overlap.compare(args.turns, args.small)
        print(found.text(), flush=True)
        figures["overlap"] = asdict(found)
        right = right and found.right
    for kind in (kind for kind in rank_steps.KINDS if kind in args.cases):
        for ranks in args.ranks:
            result = rank_steps.start(kind, ranks, args.turns, args.small)
            print(result.text(), flush=True)
            figures["ranks"].append(asdict(result))
            right = right and result.right
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")
    return int(not right)


def compare_cases(args: argparse.Namespace) -> list[Row]:
    """Measures the cases of this process, and prints a line for each."""
    chosen = [name for name in CONTESTS if name.partition("/")[0] in args.cases]
    if not chosen:
        return []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # malloc() gives freed blocks back to the kernel until it has seen a large one, and keeps them afterwards.
    # So the CPU would be slower in the first cases than in the last ones.
    torch.empty(BLOCK, dtype=torch.uint8)
    try:
        print(f"# one card and the CPU, one thread each, {args.turns} turns", HEAD, sep="\n", flush=True)
        rows = []
        for name in chosen:
            rows.append(compare(name, CONTESTS[name], args.turns, args.small))
            print(rows[-1].text(), flush=True)
    finally:
        torch.set_num_threads(threads)
    return rows
