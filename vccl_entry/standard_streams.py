"""Standard streams that are closed, as cron and some daemons leave them.

The next file or socket that a process opens gets the number of a closed stream, and then takes what the
process and its children print, or is handed on in the place of the stream. ``print(..., file=sys.stderr)``
writes to stdout where Python has found stderr closed.
"""

import os
import sys


def replace_closed() -> None:
    """Opens /dev/null in the place of each closed standard stream. Call this before anything is opened."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
            continue
        except OSError:
            # Those below are open, so the system gives the number that is wanted.
            opened = os.open(os.devnull, os.O_RDWR)
        os.set_inheritable(opened, True)
        stream = open(opened, mode, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
