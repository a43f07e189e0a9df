"""Says which rank failed first, in one line that comes last."""

import os
import signal

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure


def describe(error: ChildFailedError) -> str:
    """Returns the line of vrun for a run that has failed.

    torchrun has a table of all ranks. Most fail because of the first failure, whose row is easy to miss.
    """
    rank, failure = error.get_first_failure()
    text = f"vrun: rank {rank} (pid {failure.pid}) failed first: {_how(failure)}"
    others = len(error.failures) - 1
    if others > 0:
        text += f"; {others} other rank{'s' * (others > 1)} failed or had to end after it"
    if os.path.isfile(failure.error_file):  # which torch's decorator @record writes
        text += f"; its error: {(str(failure.message).strip().splitlines() or ['none'])[-1]}"
    return text


def _how(failure: ProcessFailure) -> str:
    if failure.exitcode >= 0:
        return f"exit status {failure.exitcode}"
    try:
        name = signal.Signals(-failure.exitcode).name
    except ValueError:
        name = f"signal {-failure.exitcode}"
    return f"Signal {-failure.exitcode} ({name}) has ended it"
