"""The command line: ``python -m vccl.compare replay FILE``."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

import torch

from vccl._device_type import device_type
from vccl.compare.dump import replay
from vccl.compare.tolerance import Tolerance

_EXIT_CODES = """exit codes:
  0  both devices compute the same
  1  they differ
  2  the file could not be read or run, or the command line is wrong"""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m vccl.compare",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "replay",
        help="run the operator in a file on two devices, and compare what they compute",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("file", help="what dump_operator() or Report.dump() wrote")
    add("--device", default=device_type(), help="the device to examine (default: %(default)s)")
    add("--reference", default="cpu", help="the device to agree with (default: %(default)s)")
    add("--bits", action="store_true", help="every bit has to be the same")
    add("--import", dest="modules", action="append", default=[], help="a module to import first")
    add("--library", action="append", default=[], help="a library to load first, with operators of its own")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line. Returns the exit code."""
    args = parse(argv)
    try:
        for name in args.modules:
            importlib.import_module(name)
        for path in args.library:
            torch.ops.load_library(path)
        report = replay(
            args.file, device=args.device, reference=args.reference, tolerance=Tolerance(bits=args.bits)
        )
    except Exception as error:
        print(f"{args.file}: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(report)
    return int(report.difference is not None)
