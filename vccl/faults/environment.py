"""Switches on the plan that VCCL_FAULTS asks for, when a process makes its first group."""

from __future__ import annotations

import atexit
import functools
import os
import sys

from vccl import _C

# What vrun sets, so that it can tell what struck ranks that died.
LOG = "VCCL_FAULTS_LOG"
PLAN = "VCCL_FAULTS"


def follow(rank: int) -> None:
    """Tells the faults which rank this process is, and switches the plan on in the first call.

    Args:
        rank: the number in the job.

    Raises:
        ValueError: VCCL_FAULTS has a plan that is not allowed, or names a file that cannot be read.
    """
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    log = os.environ.get(LOG, "")
    _C._identify_for_faults(rank, int(restart) if restart.isdecimal() else 0, log)
    if text := os.environ.get(PLAN, ""):
        _switch_on(text, bool(log))


@functools.cache
def _switch_on(text: str, has_log: bool) -> None:
    from . import plans

    try:
        plan = plans.compiled(text)
    except (ValueError, OSError) as error:
        raise ValueError(f"VCCL_FAULTS={text!r} is not valid: {error}") from error
    _C._switch_faults_on(plan)
    if not has_log:
        atexit.register(_tell)


def _tell() -> None:
    """Prints what has struck this process. Where there is a log, whoever has started the ranks does that."""
    from . import plans, report

    if found := plans.due():
        print(report.table(found), file=sys.stderr, flush=True)
