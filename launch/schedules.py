"""Lets ranks play a schedule (docs/inside/schedules.md), and gives them the memory for one turn."""

import contextlib
import os
import re
from collections.abc import Iterator

EXACT = ",exact"
_TEXT = re.compile(rf"(?:random|pct:(?P<depth>\d+)):(?P<seed>\d+)(?:{EXACT})?")


def what_is_wrong(schedule: str | None) -> str | None:
    """Returns why the value of --schedule cannot be used, or None.

    Each rank reads it once more (base/schedule/text.cpp). Here, it is refused before a rank starts.
    """
    if not schedule:
        return None
    found = _TEXT.fullmatch(schedule)
    if found and int(found["seed"]) < 2**64 and 1 <= int(found["depth"] or 1) <= 16:
        return None
    return (
        f"--schedule {schedule!r} is not valid: expected random:SEED or pct:DEPTH:SEED, with a seed from "
        f"0 to {2**64 - 1} and a depth from 1 to 16, and perhaps '{EXACT}' behind it"
    )


@contextlib.contextmanager
def shared_turns(schedule: str, ranks: int) -> Iterator[dict[str, str]]:
    """Yields the environment variables by which ranks share a turn, if the schedule is exact.

    Args:
        schedule: a value of VDEV_SCHEDULE.
        ranks: how many ranks play it, all on this machine.
    """
    if not schedule.endswith(EXACT) or ranks < 2:
        yield {}
        return
    # It has no name, so nothing is left when the last rank has ended.
    turns = os.memfd_create("vccl turns", os.MFD_CLOEXEC)
    try:
        yield {"VDEV_SCHEDULE_TURNS": f"/proc/{os.getpid()}/fd/{turns}"}
    finally:
        os.close(turns)


@contextlib.contextmanager
def announced(schedule: str | None, ranks: int) -> Iterator[str]:
    """Lets the ranks that start inside of a block play a schedule, and yields it.

    Args:
        schedule: a value of VDEV_SCHEDULE, or None for the value that the variable has.
        ranks: how many ranks there are, all on this machine.
    """
    if schedule is not None:
        os.environ["VDEV_SCHEDULE"] = schedule
    text = os.environ.get("VDEV_SCHEDULE", "")
    with shared_turns(text, ranks) as turns:
        os.environ.update(turns)
        yield text
