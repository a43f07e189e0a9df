"""Figures as Markdown tables, printed or put into a document."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vccl.bench.report import Row, read_json
from vccl.bench.sizes import format_size, parse_size

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
Figures = tuple[dict[str, Any], list[Row]]  # what read_json() returns for one file


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m vccl.bench table", description=__doc__)
    parser.add_argument("figures", type=Path, nargs="+", help="files that vccl.bench --json wrote")
    parser.add_argument(
        "--sizes",
        type=lambda text: [parse_size(size) for size in text.split(",")],
        metavar="SIZE,...",
        help="writes one short table with the medians of all files at these sizes",
    )
    parser.add_argument(
        "--into", type=Path, metavar="FILE", help=f"replaces what stands there between {BEGIN} and {END}"
    )
    args = parser.parse_args(argv)
    args.figures = [read_json(path) for path in args.figures]
    for facts, rows in args.figures if args.sizes else []:
        missing = sorted(set(args.sizes) - {row.size for row in rows})
        if missing:
            text = ", ".join(map(format_size, missing))
            parser.error(f"the figures of {facts['ranks']} ranks have no row for {text}")
    return args


def main(argv: Sequence[str]) -> int:
    args = parse(argv)
    if args.sizes:
        text = short_table(args.figures, args.sizes)
    else:
        text = "\n\n".join(table(*figures) for figures in args.figures)
    if args.into is None:
        print(text)
    else:
        args.into.write_text(replaced(args.into.read_text(), text))
        print(f"wrote {args.into}")
    return 0


def table(facts: dict[str, Any], rows: Sequence[Row]) -> str:
    """Returns one file's figures: times as median / p99 in microseconds."""
    names = list(rows[0].timings)
    with_memory = rows[0].memory is not None
    head = ["size"]
    for name in names:
        head += [f"{name} on {facts['devices'][name]}, us"]
    head += [f"{name} / {names[0]}" for name in names[1:]] + ["of memory speed"] * with_memory
    title = f"{facts['collective']} of {rows[0].dtype}, {facts['ranks']} ranks"
    lines = [f"{title} {conditions(facts)}; median / 99th percentile:", "", *head_lines(head)]
    for row in rows:
        cells = [size_text(row.size)]
        cells += [f"{timing.median:,.1f} / {timing.p99:,.1f}" for timing in row.timings.values()]
        cells += [f"{row.ratio(name):.1f}x" for name in names[1:]]
        part = row.of_memory(names[0])
        cells += [f"{part:.0%}"] if part is not None else []
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def short_table(figures: Sequence[Figures], sizes: Sequence[int]) -> str:
    """Returns the medians of several files of one collective, in microseconds: a row for each of `sizes`."""
    facts, rows = figures[0]
    head = ["size"] + [
        f"{name}, {facts['ranks']} ranks" for facts, rows in figures for name in rows[0].timings
    ]
    lines = [
        f"{facts['collective']} of {rows[0].dtype} {conditions(facts)}; median time in us:",
        "",
        *head_lines(head),
    ]
    for size in sizes:
        cells = [size_text(size)]
        for _, rows in figures:
            row = next(row for row in rows if row.size == size)
            cells += [f"{timing.median:,.1f}" for timing in row.timings.values()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def conditions(facts: dict[str, Any]) -> str:
    """Returns the machine and the day: "on 2 cores (AMD EPYC), 2026-11-22"."""
    machine = facts["machine"]
    return f"on {machine['cores']} cores ({machine['cpu']}), {machine['time'][:10]}"


def head_lines(head: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]


def size_text(size: int) -> str:
    text = format_size(size)
    return text if text[-1].isalpha() else f"{text} B"


def replaced(document: str, text: str) -> str:
    """Returns the document with `text` between the marks.

    Raises:
        ValueError: the document has no such marks.
    """
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no {BEGIN} with {END} behind it")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"
