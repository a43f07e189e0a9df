"""The command line of ``python -m vccl.top``."""

import argparse
import contextlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from vccl.top import jobs, screen

# The command's status.
_FINE, _WRONG_OPTION, _FOUND = 0, 2, 3


def _interval(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 3600 seconds")
    return seconds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m vccl.top",
        description="Shows what the ranks of the jobs of this user do, who waits for whom, and why.",
        epilog="With --once and --json the status is 3 if a job hangs, and 0 otherwise.",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--once", action="store_true", help="print the tables once, as text")
    form.add_argument("--json", action="store_true", help="print everything once, as JSON (docs/hangs.md)")
    parser.add_argument("--pid", type=int, help="show only the job of this process")
    parser.add_argument("--job", help="show only jobs whose id begins with this")
    parser.add_argument(
        "--interval", type=_interval, default=2.0, help="seconds between two looks (default: 2)"
    )
    parser.add_argument(
        "--no-stacks",
        action="store_true",
        help="do not ask ranks that others wait for where they are",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command, and returns its status."""
    parser = _parser()
    options = parser.parse_args(arguments)

    def look() -> dict[str, Any]:
        return jobs.look(stacks=not options.no_stacks, pid=options.pid, job=options.job)

    if options.once or options.json:
        found = look()
        print(json.dumps(found) if options.json else screen.as_text(found))
        findings = [finding for job in found["jobs"] for finding in job["diagnosis"]]
        return _FOUND if any(finding["kind"] != "slow" for finding in findings) else _FINE
    if importlib.util.find_spec("rich") is None:
        print("The live screen needs rich (pip install vccl[top]). --once prints the same.", file=sys.stderr)
        return _WRONG_OPTION
    _show(look, options.interval)
    return _FINE


def _show(look: Callable[[], dict[str, Any]], interval: float) -> None:
    from rich.live import Live

    with contextlib.suppress(KeyboardInterrupt), Live(screen.as_rich(look()), screen=True) as live:
        while True:
            time.sleep(interval)
            live.update(screen.as_rich(look()))
