"""Lets a process that has found races end with a status of its own."""

from __future__ import annotations

import atexit
from collections.abc import Callable

STATUS = 86
"""The exit status of a process that would have ended with 0, and in which races were found."""

_has_found: Callable[[], bool] | None = None


def end_with_failure_if(has_found: Callable[[], bool]) -> None:
    """Lets this process end with STATUS if it would end with 0, and ``has_found()`` is true at the end."""
    global _has_found
    if _has_found is None:
        atexit.register(_tell_status)
    _has_found = has_found


def _tell_status() -> None:
    from vccl import _C

    _C._races_judge_shared()
    _C._races_end_with(status_at_end(0))


def status_at_end(status: int) -> int:
    """Returns the exit status for a process that ends without Python's end."""
    return STATUS if status == 0 and _has_found is not None and _has_found() else status
