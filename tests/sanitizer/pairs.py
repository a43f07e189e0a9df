"""What racing programs are made of, and the judge of what the sanitizer says of them.

A program is a function that takes whether it is repaired. Its source names the two accesses that have no
order by the comments `# first` and `# second` at the ends of their lines, in the order of the program's
calls. The racing form must be reported as exactly this pair of lines, and the repaired form must not be
reported. Waits for events that the racing form never records have the comment `# wait`, and are reported,
too.
"""

import functools
import inspect
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import vccl.sanitizer

SIZE = 256
NEVER_RECORDED = "wait for an event that was never recorded"
# Larger than what the allocator keeps for small tensors, so that freed memory is given out again next.
LARGE = 3 << 20

Play = Callable[[bool], None]


@dataclass(frozen=True)
class Program:
    """A racing program, and what must be said of it."""

    play: Play
    kind: str
    missing: str  # a regular expression for the wait that is named
    ranks: int
    racing_ranks: tuple[int, ...]

    @property
    def file(self) -> str:
        return inspect.getsourcefile(inspect.unwrap(self.play)) or ""

    def lines(self, which: str) -> list[int]:
        """Returns the numbers of the program's own lines whose comments say `which`."""
        lines, first = inspect.getsourcelines(inspect.unwrap(self.play))
        return [first + i for i, line in enumerate(lines) if line.endswith(f"# {which}\n")]

    def line(self, which: str) -> int:
        """Returns the number of the line whose comment says `which`.

        A helper's line says whose it is: `# first of name_of_the_program`.
        """
        found = self.lines(which)
        if not found:
            of_helper = f"# {which} of {self.play.__name__}"
            file = Path(self.file).read_text().splitlines()
            found = [number for number, line in enumerate(file, 1) if line.endswith(of_helper)]
        (line_number,) = found
        return line_number


PROGRAMS: list[Program] = []


def racing(kind: str, missing: str, *, ranks: int = 1, on: tuple[int, ...] | None = None) -> Callable:
    """Registers a program.

    Args:
        kind: what the report says of the second access and the first.
        missing: a regular expression for the wait that the report names.
        ranks: how many ranks play the program together.
        on: the ranks that must report the race. None: all.
    """

    def register(play: Play) -> Play:
        PROGRAMS.append(Program(play, kind, missing, ranks, tuple(range(ranks)) if on is None else on))
        return play

    return register


def of_ranks(ranks: int) -> list:
    """Returns the registered programs for so many ranks, as parameters of a test."""
    return [
        pytest.param(program, id=f"{program.play.__module__.rpartition('.')[2]}-{program.play.__name__}")
        for program in PROGRAMS
        if program.ranks == ranks
    ]


def current() -> torch.Stream:
    return torch.vdev.current_stream()


def side_stream() -> torch.Stream:
    """Returns a stream behind what the current one holds."""
    stream = torch.vdev.Stream()
    stream.wait_stream(current())
    return stream


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape or (SIZE,), dtype=dtype, device="vdev")


def pinned(elements: int = SIZE) -> torch.Tensor:
    return torch.zeros(elements).pin_memory()


def wait_without_order(flag: list) -> None:
    """Waits until another thread has changed a variable. Only the interpreter's lock orders the two."""
    end = time.monotonic() + 60
    while not flag:
        assert time.monotonic() < end, "the other thread does not come"
        time.sleep(0)


def settle() -> None:
    """Waits for all cards, makes the default stream current, and gives free memory back, so that memory which
    a program frees is the only one that it can get again."""
    for card in range(torch.vdev.device_count()):
        torch.vdev.synchronize(card)
    torch.vdev.set_stream(torch.vdev.default_stream())
    torch.vdev.empty_cache()


def reports_of(play: Play, repaired: bool) -> list[dict[str, Any]]:
    """Plays a program, and returns what the sanitizer has reported."""
    settle()
    with vccl.sanitizer.enabled() as found:
        play(repaired)
    settle()
    return found.reports


def judge(program: Program, repaired: bool, rank: int = 0) -> None:
    """Plays one form of a program on this rank, and checks what is reported."""
    reports = reports_of(program.play, repaired)
    told = "\n".join(map(brief, reports))
    if repaired or rank not in program.racing_ranks:
        assert not reports, f"false alarm:\n{told}"
        return
    assert reports, "the race was missed"
    waits = [report["second"]["line"] for report in reports if report["kind"] == NEVER_RECORDED]
    assert waits == program.lines("wait"), told
    reports = [report for report in reports if report["kind"] != NEVER_RECORDED]
    first, second = program.line("first"), program.line("second")
    assert len(reports) == 1, f"expected lines {first} and {second} alone:\n{told}"
    (report,) = reports
    places = [(report[side]["file"], report[side]["line"]) for side in ("first", "second")]
    assert places == [(program.file, first), (program.file, second)], told
    assert report["kind"] == program.kind, told
    assert re.search(program.missing, report["missing"]), told


def brief(report: dict[str, Any]) -> str:
    """Returns a report in one line."""
    first, second = (
        f"{access['op']} on {access['stream']} at {access['file']}:{access['line']}" if access else "nothing"
        for access in (report["first"], report["second"])
    )
    return f"{report['kind']}: {first} / {second}; missing: {report['missing']}"


def quietly(function: Callable) -> Callable:
    """Lets a program that leaves the current stream changed come back to the one before."""

    @functools.wraps(function)
    def call(repaired: bool) -> None:
        before = current()
        try:
            function(repaired)
        finally:
            torch.vdev.set_stream(before)

    return call
