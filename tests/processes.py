"""Bounded waits for what other processes do."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path


def wait_until(what: Callable[[], bool]) -> None:
    """Waits until something holds, and fails the test if it never does."""
    until = time.monotonic() + 300
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


def read_when_there(files: Sequence[Path], child) -> list[str]:
    """Returns the contents of files that a child's ranks write and then move to these names."""
    until = time.monotonic() + 300
    while not all(file.exists() for file in files):
        assert time.monotonic() < until and child.poll() is None, child.output(1)
        time.sleep(0.02)
    return [file.read_text() for file in files]


def gone(pid: int | str) -> bool:
    """Whether a process has ended. Where nothing reaps orphans, it stays as a zombie."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
