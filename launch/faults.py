"""The option --faults of vrun: hands a plan of faults to the ranks, and tells what has struck.

Ranks that die cannot tell it, so each appends what strikes it to a file before it strikes.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PLAN = "VCCL_FAULTS"
LOG = "VCCL_FAULTS_LOG"


def what_is_wrong(text: str | None) -> str | None:
    """Returns why a plan cannot be used, or None."""
    if text is None:
        return None
    from vccl.faults import rules

    try:
        rules.read(text)
    except (ValueError, OSError) as error:
        return f"--faults {text!r} is not valid: {error}"
    return None


@contextlib.contextmanager
def told(text: str | None) -> Iterator[None]:
    """Gives what is started in the block the plan, and prints at the end which faults have struck.

    Without a plan, the one of VCCL_FAULTS counts. If a program that has started this one keeps the file, it
    will tell.
    """
    if text is not None:
        os.environ[PLAN] = f"@{Path(text[1:]).resolve()}" if text.startswith("@") else text
    if not os.environ.get(PLAN) or os.environ.get(LOG):
        yield
        return
    from vccl.faults import report

    with tempfile.TemporaryDirectory(prefix="vrun_", ignore_cleanup_errors=True) as folder:
        log = Path(folder, "faults")
        os.environ[LOG] = str(log)
        try:
            yield
        finally:
            del os.environ[LOG]
            if found := report.read_log(log):
                print(report.table(found), file=sys.stderr, flush=True)
