"""Runs a test under many schedules (``--ranks-schedules``), and says which one fails first.

docs/inside/schedules.md has what a schedule is.
"""

import contextlib
import gc
import os
import shlex
from collections.abc import Callable, Iterator, Sequence

import pytest
from _pytest.runner import runtestprotocol

from vccl.launch.schedules import EXACT, shared_turns

VARIABLE = "VDEV_SCHEDULE"


def texts_of(count: int, exact: bool) -> list[str]:
    """Returns values of VDEV_SCHEDULE, of each kind in turns, and with depths for the usual bugs."""
    kinds = ("random", "pct:2", "random", "pct:3")
    return [f"{kinds[seed % 4]}:{seed}{EXACT if exact else ''}" for seed in range(1, count + 1)]


@contextlib.contextmanager
def variables(text: str | None, ranks: int) -> Iterator[dict[str, str]]:
    """Yields the environment variables of ranks that play a schedule. They share turns if it is exact."""
    if not text:
        yield {}
        return
    with shared_turns(text, ranks) as turns:
        yield {VARIABLE: text, **turns}


@contextlib.contextmanager
def playing() -> Iterator[None]:
    """Plays the schedule that the environment of this process asks for from its start, inside of a block.

    Python looks for no cycles of objects meanwhile: when it does so depends on all that the process has done,
    and tensors that go put tasks on their streams.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        yield
        return
    from vccl import _C

    with _no_collection_of_cycles():
        _C._start_schedule(text, os.environ.get("VDEV_SCHEDULE_TURNS", ""))
        try:
            yield
        finally:
            _C._stop_schedule()


@contextlib.contextmanager
def _no_collection_of_cycles() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def first_failure(
    item: pytest.Item, texts: Sequence[str], play: Callable[[str], list[pytest.TestReport]]
) -> list[pytest.TestReport]:
    """Plays a test under one schedule after the other, until it fails or is skipped.

    Args:
        play: runs the test under a schedule, and returns its reports.

    Returns:
        The reports of the last run. That of a failure has a section with the schedule.
    """
    made: list[pytest.TestReport] = []
    for number, text in enumerate(texts, 1):
        made = play(text)
        for report in made:
            if report.failed:
                report.sections.append(("Schedule", _told(item, text, number, len(texts))))
        if any(report.outcome != "passed" for report in made):
            break
    return made


def protocol(item: pytest.Item, nextitem: pytest.Item | None, texts: Sequence[str]) -> None:
    """Runs a test of pytest's own process under schedules, and reports it."""

    def play(text: str) -> list[pytest.TestReport]:
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = text
        try:
            with playing():
                made = runtestprotocol(item, nextitem=nextitem, log=False)
            _tell_of_taken_turns(made)
            return made
        finally:
            if before is None:
                os.environ.pop(VARIABLE, None)
            else:
                os.environ[VARIABLE] = before

    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in first_failure(item, texts, play):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _tell_of_taken_turns(made: list[pytest.TestReport]) -> None:
    """Adds to failures of this process that time has decided about the order, too."""
    from vccl import _C

    taken = _C._schedule_report()[2]
    for report in made:
        if report.failed and taken:
            what = f"turns taken from threads that did not run: {taken}. Another run may have another order."
            report.sections.append(("Turns of the schedule", what))


def _told(item: pytest.Item, text: str, number: int, count: int) -> str:
    which = (
        f"{text} fails, the first of {count} schedules" if number == 1 else f"{text} is the first that fails"
    )
    after = f", after {number - 1} that pass" if number > 1 else ""
    again = f"{VARIABLE}={text} python -m pytest {shlex.quote(item.nodeid)}"
    return f"{which}{after}. To play it again:\n    {again}"
