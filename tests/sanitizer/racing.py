"""What the programs of this folder have in common, and the judge of what the sanitizer says of them."""

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import vccl.sanitizer

READ_AFTER_WRITE, WRITE_AFTER_READ, WRITE_AFTER_WRITE = (
    "read after write",
    "write after read",
    "write after write",
)
USE_AFTER_FREE = "use after free"
NEVER_RECORDED = "wait for an event that was never recorded"


@dataclass
class Program:
    """A racing program and its repaired twin.

    Comments mark the lines of the two accesses, and of waits for events that the racing form never records.
    """

    play: Callable[[bool], object]
    kind: str
    missing: str  # a part of the text that names the wait

    def lines_of(self, mark: str) -> list[int]:
        lines, start = inspect.getsourcelines(self.play)
        return [start + i for i, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}")]

    def line_of(self, mark: str) -> int:
        found = self.lines_of(mark)
        if not found and mark == "second":  # a loop in which one line does both
            return self.line_of("first")
        assert len(found) == 1, f"{self.play.__name__} marks {len(found)} lines as the {mark} access"
        return found[0]


class Programs(list):
    """The programs of one module, which its decorator collects."""

    def racing(self, kind: str, missing: str = "") -> Callable[[Callable], Callable]:
        def add(play: Callable[[bool], object]) -> Callable[[bool], object]:
            program = Program(play, kind, missing)
            self.append(pytest.param(program, id=play.__name__))
            return play

        return add


def current() -> torch.Stream:
    return torch.vdev.current_stream()


def branch_stream() -> torch.Stream:
    """Returns a stream that is not the current one, for a branch of a capture.

    The streams of the pool come in turn, so the next one may be that of the capture.
    """
    return next(stream for stream in (torch.vdev.Stream(), torch.vdev.Stream()) if stream != current())


def wait_until(is_true: Callable[[], object]) -> None:
    """Waits in a way that the sanitizer does not see, for at most a minute."""
    end = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end


def play(program: Program, repaired: bool) -> list[dict[str, Any]]:
    """Returns what the sanitizer reports of one twin, which finds no free memory of other tests."""
    torch.accelerator.synchronize()
    with torch.vdev.use_mem_pool(torch.vdev.MemPool()), vccl.sanitizer.enabled() as found:
        program.play(repaired)
    return found.reports


def judge(program: Program) -> None:
    """Plays both twins. The race must be found with its lines, and nothing else may be reported."""
    reports = play(program, False)
    waits = [report["second"]["line"] for report in reports if report["kind"] == NEVER_RECORDED]
    assert waits == program.lines_of("wait")
    reports = [report for report in reports if report["kind"] != NEVER_RECORDED]
    assert len(reports) == 1, reports
    (report,) = reports
    file = inspect.getsourcefile(program.play)
    for side in ("first", "second"):
        assert (report[side]["file"], report[side]["line"]) == (file, program.line_of(side)), report
    assert report["kind"] == program.kind, report
    assert program.missing in report["missing"], report
    assert play(program, True) == []
