"""Reads the command line, converts file after file, and reports."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vccl.convert import __doc__ as description
from vccl.convert.converter import convert_text
from vccl.convert.files import Script, find_scripts
from vccl.convert.plan import Leftover

_EXIT_CODES = """exit codes:
  0  everything was read; with --check, nothing is to change
  1  with --check: something is to change
  2  a file could not be read, parsed or written, or the command line is wrong"""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m vccl.convert",
        description=(description or "").partition("\n\nThe tool parses")[0],
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("paths", type=Path, nargs="+", metavar="FILE|DIR", help="a script, or a folder with scripts (*.py)")
    add("--write", action="store_true", help="change the files")
    add("--check", action="store_true", help="end with 1 if something is to change")
    add("--quiet", action="store_true", help="print neither the diff nor the report, but errors alone")
    return parser.parse_args(argv)


@dataclass
class Totals:
    """What was found in all files together."""

    files: int = 0
    changed: int = 0
    errors: int = 0
    leftovers: list[tuple[Path, Leftover]] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line. Returns the exit code."""
    args = parse(argv)
    totals = Totals()
    try:
        for path in find_scripts(args.paths):
            totals.files += 1
            convert_file(path, args, totals)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the diff has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not args.quiet:
        report(totals, args)
    if totals.errors:
        return 2
    return int(args.check and totals.changed > 0)


def convert_file(path: Path, args: argparse.Namespace, totals: Totals) -> None:
    """Converts one file. An error in it is printed and counted, and does not end the program."""
    try:
        script = Script.read(path)
        text = script.text.removeprefix("\ufeff")
        conversion = convert_text(text, is_package=path.name == "__init__.py")
        totals.leftovers += [(path, leftover) for leftover in conversion.leftovers]
        if conversion.text == text:
            return
        totals.changed += 1
        if not args.quiet:
            sys.stdout.flush()
            sys.stdout.buffer.write(script.diff(conversion.text))
        if args.write:
            script.write(conversion.text)
    except BrokenPipeError:
        raise
    except (OSError, SyntaxError, UnicodeError) as error:
        totals.errors += 1
        print(f"{path}: {error}", file=sys.stderr)
    except Exception as error:  # a mistake of this package must not keep it from the other files
        totals.errors += 1
        print(f"{path}: not converted: {type(error).__name__}: {error}", file=sys.stderr)


def report(totals: Totals, args: argparse.Namespace) -> None:
    """Prints what was left and why, and how many files there were."""
    if totals.leftovers:
        print("Left as it is:", file=sys.stderr)
    for path, leftover in totals.leftovers:
        print(f"  {path}:{leftover.line}: {leftover.expression}\n      {leftover.advice}", file=sys.stderr)
    done = "changed" if args.write else "to change"
    print(
        f"{totals.files} files: {totals.changed} {done}, {len(totals.leftovers)} places left,"
        f" {totals.errors} errors",
        file=sys.stderr,
    )
