"""Tells whether any rank of a job used a card.

A framework that does not know the device trains on the CPU without a word, and ends with status 0. A
process makes the file that VDEV_FIRST_USE_FILE names when it first takes memory of a card
(csrc_device/runtime/memory/first_use.cpp). The file stays however the process ends, and the programs between
vrun and that process need not know of it.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

VARIABLE = "VDEV_FIRST_USE_FILE"
_NONE_USED = """\
vrun: no rank used a card: the job ran on the CPU alone, although --cards asks for cards. The script has to
move its model and its data to a card (device="{device}"), and a framework that does not find the device by
itself has to be told its name.{pose} See "no rank used a card" in docs/errors.md."""


def none_used(device: str) -> str:
    """Returns what is told of a job that used no card. ``device`` is the name of the cards' type."""
    pose = "" if device == "cuda" else " A script for CUDA runs as it is with vrun --as-cuda."
    return _NONE_USED.format(device=device, pose=pose)


@contextlib.contextmanager
def watched() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether a process that was started in the block has used a card.

    If a vrun that started this one watches already, the function always returns True, and that vrun will
    tell.
    """
    if VARIABLE in os.environ:
        yield lambda: True
        return
    with tempfile.TemporaryDirectory(prefix="vrun_", ignore_cleanup_errors=True) as folder:
        file = Path(folder, "card_used")
        os.environ[VARIABLE] = str(file)
        try:
            yield file.exists
        finally:
            del os.environ[VARIABLE]
