"""Figures as a Markdown table, alone or put into a document."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vccl.bench.report import Row, read_json
from vccl.bench.sizes import format_size

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="vccl.bench table", description=__doc__)
    parser.add_argument("figures", type=Path, nargs="+", help="files that vccl.bench --json wrote")
    parser.add_argument(
        "--into", type=Path, metavar="FILE", help=f"replaces what stands there between {BEGIN} and {END}"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    args = parse(argv)
    text = "\n\n".join(table(*read_json(path)) for path in args.figures)
    if args.into is None:
        print(text)
    else:
        args.into.write_text(replaced(args.into.read_text(), text))
        print(f"wrote {args.into}")
    return 0


def table(facts: dict[str, Any], rows: Sequence[Row]) -> str:
    """One file's figures: times as median / p99 in microseconds."""
    names = list(rows[0].timings)
    with_memory = rows[0].memory is not None
    head = ["size"]
    for name in names:
        head += [f"{name} on {facts['devices'][name]}, us"]
    head += [f"{name} / {names[0]}" for name in names[1:]] + ["of memory speed"] * with_memory
    machine = facts["machine"]
    title = f"{facts['collective']} of {rows[0].dtype}, {facts['ranks']} ranks"
    lines = [
        f"{title} on {machine['cores']} cores ({machine['cpu']}); median / 99th percentile:",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
    ]
    for row in rows:
        cells = [format_size(row.size) + ("" if format_size(row.size)[-1].isalpha() else " B")]
        cells += [f"{timing.median:,.1f} / {timing.p99:,.1f}" for timing in row.timings.values()]
        cells += [f"{row.ratio(name):.1f}x" for name in names[1:]]
        part = row.of_memory(names[0])
        cells += [f"{part:.0%}"] if part is not None else []
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def replaced(document: str, text: str) -> str:
    """The document, with `text` between the marks.

    Raises:
        ValueError: the document has no such marks.
    """
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no {BEGIN} with {END} behind it")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"
