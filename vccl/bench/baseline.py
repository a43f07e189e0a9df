"""Compares ratios, and never absolute times, with those that were reached before."""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from vccl.bench.job import run_ranks
from vccl.bench.report import Row, machine, read_json
from vccl.bench.sizes import format_size

# A baseline is written from these measurements: the number of ranks, and the arguments.
RUNS = [
    (2, ["all_reduce", "--min", "4", "--max", "64M", "--factor", "16"]),
    (4, ["all_reduce", "--min", "1K", "--max", "64M", "--factor", "16"]),
    (2, ["all_gather", "--min", "1K", "--max", "64M", "--factor", "256"]),
    (2, ["reduce_scatter", "--min", "1K", "--max", "64M", "--factor", "256"]),
    (2, ["broadcast", "--min", "1K", "--max", "64M", "--factor", "256"]),
    (2, ["all_to_all", "--min", "1K", "--max", "64M", "--factor", "256"]),
]
OTHER = "gloo"
LARGE = 16 << 20  # from here on the part of the memory's speed is compared too: below, caches take part


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m vccl.bench check",
        description="Measures what the baseline file holds, and compares the ratios.",
    )
    parser.add_argument("baseline", type=Path, nargs="?", default=Path("docs/bench/baseline.json"))
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.4,
        help="the part of a ratio that may be lost before it counts as lost (default: 0.4)",
    )
    parser.add_argument("--write", action="store_true", help="writes the file instead")
    args = parser.parse_args(argv)
    if not 0 <= args.tolerance < 1:
        parser.error(f"--tolerance {args.tolerance} is not a part of one: 0.4 lets a ratio fall by 40 %")
    if not args.write and not args.baseline.is_file():
        parser.error(f"there is no {args.baseline}; --write makes one")
    return args


def main(argv: Sequence[str]) -> int:
    """Runs the command. Returns 0, or 1 if a ratio is no longer reached."""
    args = parse(argv)
    if args.write:
        runs = [
            {"ranks": ranks, "arguments": arguments, "ratios": ratios(run(ranks, arguments))}
            for ranks, arguments in RUNS
        ]
        args.baseline.parent.mkdir(parents=True, exist_ok=True)
        args.baseline.write_text(json.dumps({"machine": machine(), "runs": runs}, indent=2) + "\n")
        print(f"wrote {args.baseline}")
        return 0
    lost = 0
    for entry in json.loads(args.baseline.read_text())["runs"]:
        now = ratios(run(entry["ranks"], entry["arguments"]))
        for name, before in entry["ratios"].items():
            fell = now[name] < before * (1 - args.tolerance)
            lost += fell
            verdict = "LOST" if fell else "kept"
            print(f"{entry['ranks']} ranks, {name}: {before:.2f} in the baseline, {now[name]:.2f}: {verdict}")
    return int(lost > 0)


def run(ranks: int, arguments: Sequence[str]) -> list[Row]:
    """Measures in a job of its own.

    Raises:
        subprocess.CalledProcessError: the job failed; it has said why.
    """
    with tempfile.TemporaryDirectory(prefix="vccl-bench-") as folder:
        path = Path(folder) / "figures.json"
        run_ranks(ranks, [*arguments, "--backend", f"vccl,{OTHER}", "--memory", "--json", str(path)])
        return read_json(path)[1]


def ratios(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the ratios that are compared, by name. Larger ones are better."""
    found = {f"{OTHER} / vccl at {format_size(row.size)}": row.ratio(OTHER) for row in rows}
    for row in rows:
        part = row.of_memory("vccl")
        if row.size >= LARGE and part is not None:
            found[f"part of the memory's speed at {format_size(row.size)}"] = part
    return found
