"""The command line of ``python -m vccl.faults``."""

from __future__ import annotations

import argparse
import collections
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from . import draws, soak
from .rules import LINK_KINDS
from .runs import Program


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m vccl.faults", description="Faults on demand.")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser(
        "soak",
        help="run a script under random plans",
        description="Runs a script under vrun, first without faults and then with one fault after the other, "
        "which are drawn from seeds. The exit status is 1 if a run hung, or ended with other numbers than "
        "without faults though its fault damages none; 2 if the script cannot be judged.",
    )
    one.add_argument(
        "--seconds", type=float, default=600.0, help="begin no further run after this time (600)"
    )
    one.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    one.add_argument("--count", type=_positive, help="make at most so many runs")
    one.add_argument("--cards", type=_positive, default=2, help="ranks a host (2)")
    one.add_argument("--hosts", type=_positive, default=1, help="pretended hosts (1)")
    one.add_argument(
        "--kinds",
        type=_kinds,
        help=f"of {','.join(draws.KINDS)} (all of them; those of links with several hosts only)",
    )
    one.add_argument(
        "--result", type=Path, help="the file that has the script's result (else its output counts)"
    )
    one.add_argument(
        "--bound",
        type=float,
        default=60.0,
        help="how many seconds more than three times as long as without faults a run may take (60)",
    )
    one.add_argument("--json", type=Path, metavar="FILE", help="write what became of each run to this file")
    one.add_argument("script")
    one.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script, behind --")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(text.split(","))
    if unknown := [kind for kind in kinds if kind not in draws.KINDS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(draws.KINDS)}")
    return kinds


def _kinds_of(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Sequence[str]:
    """Returns the kinds that are drawn."""
    if args.kinds is None:
        return [kind for kind in draws.KINDS if args.hosts > 1 or kind not in LINK_KINDS]
    if args.hosts == 1 and (links := [kind for kind in args.kinds if kind in LINK_KINDS]):
        parser.error(f"--kinds {links[0]} strikes links between hosts, and --hosts is 1")
    kinds: Sequence[str] = args.kinds
    return kinds


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line (default: the process's own) and returns the exit status."""
    parser = _parser()
    args = parser.parse_args(argv)
    kinds = _kinds_of(parser, args)
    arguments = args.arguments[1:] if args.arguments[:1] == ["--"] else args.arguments
    options = ["--cards", str(args.cards), *(["--hosts", str(args.hosts)] if args.hosts > 1 else [])]
    program = Program(options, args.script, arguments, args.result)
    try:
        judged = soak.soak(
            program,
            seed=args.seed,
            seconds=args.seconds,
            count=args.count,
            kinds=kinds,
            bound=args.bound,
            tell=_tell,
        )
    except soak.SoakError as error:
        print(f"vccl.faults: {error}", file=sys.stderr)
        return 2
    counts = collections.Counter(each.verdict for each in judged)
    print(f"\n{len(judged)} runs:")
    for verdict in soak.Verdict:
        if counts[verdict]:
            print(f"{counts[verdict]:6}  {verdict.value}")
    if args.json:
        args.json.write_text(json.dumps([each.as_dict() for each in judged], indent=1) + "\n")
    return 1 if any(counts[verdict] for verdict in soak.BAD) else 0


def _tell(judged: soak.Judged) -> None:
    print(
        f"seed {judged.seed}  {judged.seconds:6.1f} s  {judged.verdict.value:48}  {judged.plan}", flush=True
    )
    if judged.detail and judged.verdict is not soak.Verdict.NAMED:
        print(f"    {judged.detail}", flush=True)
