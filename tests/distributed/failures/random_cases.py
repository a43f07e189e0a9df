"""What the drivers of random cases have in common: a command line, verdicts, and the process of the server.

A case is a number; everything random in it follows from that number.
"""

import argparse
import collections
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class Verdict:
    faults: list[str]
    latency: float = 0.0  # seconds from what went wrong to the last rank's error
    excused: bool = False  # neither passed nor failed, because something was not as the case wants it


class Server:
    """Runs ``serve(commands, answers)`` in another process. Made before this process has threads: it forks.

    ``serve`` gets the ends of two pipes. It returns what a process is to run that has become a rank, or None.
    """

    def __init__(self, serve: Callable[[int, int], Any]) -> None:
        theirs, self._commands = os.pipe()
        self._answers, ours = os.pipe()
        self._server = os.fork()
        if self._server == 0:
            os.close(self._commands)
            os.close(self._answers)
            rank = serve(theirs, ours)
            sys.exit(rank.run() if rank else 0)
        os.close(theirs)
        os.close(ours)
        self._lines = open(self._answers)  # noqa: SIM115

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        os.write(self._commands, json.dumps(order).encode() + b"\n")
        return json.loads(self._lines.readline(), object_hook=with_ranks)

    def close(self) -> None:
        os.close(self._commands)
        self._lines.close()
        os.waitpid(self._server, 0)


def with_ranks(table: dict[str, Any]) -> dict[Any, Any]:
    """JSON's keys are texts; ranks are numbers."""
    return {int(key) if key.isdigit() else key: value for key, value in table.items()}


def arguments(description: str | None, count: int) -> argparse.Namespace:
    """Reads the command line. ``numbers`` of the result are those of the cases."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=count, help=f"of cases (default: {count})")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case (default: 0)")
    parser.add_argument("--cases", help="these numbers only, separated by commas")
    parser.add_argument("--show", action="store_true", help="what the ranks told and printed")
    parser.add_argument("--slack", type=float, default=1.0, help="factor of the bounds, for a busy machine")
    args = parser.parse_args()
    args.numbers = range(args.seed, args.seed + args.count)
    if args.cases:
        args.numbers = [int(number) for number in args.cases.split(",")]
    return args


def run_all(
    args: argparse.Namespace,
    make_case: Callable[[int], Any],
    run: Callable[[Any, float], tuple[Any, Verdict]],
    measured: Callable[[Any], str | None],
) -> int:
    """Runs the cases, and prints those that failed and a summary. Returns the exit status.

    ``measured(case)`` says under which name the latency of a case counts, if it does.
    """
    tally: collections.Counter = collections.Counter()
    worst: dict[str, float] = {}
    begin = time.monotonic()
    for number in args.numbers:
        case = make_case(number)
        outcome, verdict = run(case, args.slack)
        result = "failed" if verdict.faults else "excused" if verdict.excused else "passed"
        tally[result] += 1
        if result == "passed" and (name := measured(case)):
            worst[name] = max(worst.get(name, 0.0), verdict.latency)
        if verdict.faults or args.show:
            print(f"case {number} {result}: {case}", *verdict.faults, sep="\n    ", flush=True)
        if args.show:
            print(*outcome.events, outcome.printed, sep="\n", flush=True)
    figures = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in sorted(worst.items()))
    print(f"{dict(tally)} in {time.monotonic() - begin:.0f} s; slowest to notice: {figures}")
    return 1 if tally["failed"] else 0


def run_in_a_test(run: Callable[..., str], driver: str, cases: Sequence[int]) -> None:
    """Runs a driver with the fixture ``run``. A busy machine gets 12 times the seconds of its bounds.

    Who waits for a group's timeout waits half an hour.
    """
    path = os.pathsep.join(path for path in sys.path if path)
    run(
        [sys.executable, driver, "--cases", ",".join(map(str, cases)), "--slack", "12"],
        timeout=1800,
        env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
