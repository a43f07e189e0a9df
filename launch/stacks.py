"""Lets ranks write their Python stacks to stderr, one rank after the other, so that no lines are mixed.

A rank's handler of SIGQUIT (``template.py``) writes in many small pieces. It has written all of them once the
rank's main thread has SIGQUIT neither pending nor blocked: the system blocks a signal while its handler runs.
"""

import contextlib
import fcntl
import functools
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

# Seconds for which one rank is waited for. A rank that is stopped writes later.
PATIENCE = 2.0


def show(ranks: Iterable[int]) -> None:
    """Sends SIGQUIT to the processes with these pids in turn. Returns once they have written their stacks."""
    with _turn():
        for pid in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGQUIT)
                _wait_until(functools.partial(_has_written, pid))


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """Keeps other agents of this machine waiting, which may write to the same stderr."""
    with open(__file__, "rb") as file:

        def locked() -> bool:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            return False

        _wait_until(locked)
        yield


def _has_written(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    masks = re.findall(r"^(?:SigPnd|ShdPnd|SigBlk):\s*([0-9a-f]+)$", status, re.MULTILINE)
    return not any(int(mask, 16) >> (signal.SIGQUIT - 1) & 1 for mask in masks)


def _wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds() and time.monotonic() < end:
        time.sleep(0.002)
