"""Says when ranks are up: for whoever waits at a terminal."""

import argparse
import os
import sys
import time

from .relay import Relay

# The process that the user has started, if not this one, as its pid.
started_as: int | None = None


class Announcement:
    """Writes the line ``vrun: 8 ranks are up after 0.31 s (pids 123 to 130)`` to stderr, or nothing.

    Programs that compare what vrun writes are not at a terminal, and have not said --verbose.
    """

    def __init__(self, args: argparse.Namespace, relay: Relay | None) -> None:
        self._wanted = args.verbose or os.isatty(2)
        self._host = "" if args.host is None else f"host{args.host}: "
        self._relay = relay

    def __call__(self, pids: list[int]) -> None:
        if not self._wanted:
            return
        seconds = seconds_since_start_of(started_as or os.getpid())
        text = f"vrun: {self._host}{_ranks(len(pids))} up after {seconds:.2f} s ({_names(pids)})"
        if self._relay:
            self._relay.say(text)
        else:
            print(text, file=sys.stderr, flush=True)


def seconds_since_start_of(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        # The name of the program, in brackets, may hold anything. starttime is the 22nd field.
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _ranks(count: int) -> str:
    return "1 rank is" if count == 1 else f"{count} ranks are"


def _names(pids: list[int]) -> str:
    if len(pids) == 1:
        return f"pid {pids[0]}"
    if pids == list(range(pids[0], pids[0] + len(pids))):
        return f"pids {pids[0]} to {pids[-1]}"
    return "pids " + ", ".join(map(str, pids))
