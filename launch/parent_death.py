"""Ends a process with its parent. A parent that gets SIGKILL cannot end its children, so the kernel does."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1  # prctl(2)


def signal_at_death_of_parent(number: signal.Signals) -> None:
    """Has the kernel send this process a signal when its parent ends, in whatever way.

    A parent that has ended before the call is not noticed.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
