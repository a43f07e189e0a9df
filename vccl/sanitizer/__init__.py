"""Finds races of streams, collectives and the host's memory, whatever the timing of the run.

``VDEV_SANITIZER=1`` looks for them in a whole process, and enabled() in a part of a program.
docs/sanitizer.md says what is found, and what the reports mean.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from . import endings, events, pointers, processes, settings, threads
from .reports import Found, RaceError, Report

__all__ = ["Found", "RaceError", "Report", "enabled", "follow_environment", "found"]

_found: Found | None = None
_inherited = 0  # errors that the parent of this forked process has found, and ends for


def found() -> Found | None:
    """Returns what was found since races are looked for, or None if they are not."""
    return _found


def follow_environment() -> None:
    """Looks for races from now on if VDEV_SANITIZER asks for it, and otherwise does not.

    Raises:
        ValueError: a variable has a value that is not allowed.
        OSError: the file of VDEV_SANITIZER_SUPPRESSIONS cannot be read, or that of VDEV_SANITIZER_LOG cannot
            be written.
    """
    asked = settings.of_environment()
    if asked is None:
        if _found is not None:
            _stop()
        return
    if _found is None or _found.settings != asked:
        _start(asked)
        endings.end_with_failure_if(_has_found)


@contextlib.contextmanager
def enabled(*, raises: bool = False, uninit: bool = False, useless: bool = False) -> Iterator[Found]:
    """Looks for races in the body, as if nothing had happened before it, and yields what is found.

    What the program has given to streams before counts as done: the body's accesses are compared with each
    other only. If races are looked for already, the body's go to the result of this call alone.

    Args:
        raises: raise RaceError within the call of the second access.
        uninit: report memory of cards that is read before anything was written to it.
        useless: report waits of the host that order nothing.

    Example:
        >>> with vccl.sanitizer.enabled() as found:
        ...     train_step()
        >>> assert not found.reports
    """
    global _found
    before = _found
    _start(settings.Settings(raises=raises, uninit=uninit, useless=useless, prints=False))
    assert _found is not None
    try:
        yield _found
        from vccl import _C

        _C._races_judge_shared()
    finally:
        _found.end()
        if before is None:
            _stop()
        else:
            _start(before.settings, before)


def _has_found() -> bool:
    """Returns whether a process that ends now has found errors."""
    if _found is None:
        return False
    _found.end()
    return _found.count > _inherited


def _begin_forked_child() -> None:
    global _inherited
    if _found is not None:
        _found.begin_forked_child()
        _inherited = _found.count


os.register_at_fork(after_in_child=_begin_forked_child)


def _start(asked: settings.Settings, into: Found | None = None) -> None:
    global _found
    from vccl import _C

    _found = into or Found(asked)
    threads.install()
    processes.install()
    pointers.install()
    events.follow(_found.waits)
    _C._races_start(asked.uninit, asked.useless, _found.add)


def _stop() -> None:
    global _found
    from vccl import _C

    _C._races_stop()
    events.follow(None)
    _found = None
