"""Runs one call on several ranks, and sees it to its end: of itself, by a failure, by a death, or in time."""

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

from . import messages
from .messages import Description, Done, Failing, Leaving, Order
from .pool import Pool, Rank

# Seconds, after the first failure, in which other ranks may fail by themselves. An assertion that fails on
# all ranks should be told as such.
_SECONDS_TO_FAIL_TOO = 0.3
# Seconds in which a rank whose collectives were aborted has to come to an end.
_SECONDS_TO_COME_FREE = 3.0
# Seconds in which a rank has to tell where its threads are.
_SECONDS_TO_DESCRIBE = 2.0


@dataclasses.dataclass
class Outcome:
    """The outcome of a call on one rank."""

    rank: int
    pid: int
    done: Done | None = None
    failed_at: float | None = None
    was_aborted: bool = False  # before it failed
    status: int | None = None  # if its process has ended by itself
    ended_on_purpose: bool = False
    was_ended: bool = False  # because it did not come to an end
    was_late: bool = False  # it still ran when the time was over
    description: str = ""  # where its threads were then
    stdout: str = ""
    stderr: str = ""

    @property
    def has_failed(self) -> bool:
        died = self.status is not None and not self.ended_on_purpose
        return died or self.was_ended or self.was_late or self.failed_at is not None


class Run:
    """A call that runs on ranks."""

    def __init__(
        self, pool: Pool, ranks: Sequence[Rank], dying: Sequence[int], timeout: float, debugged: int | None
    ) -> None:
        """Prepares it. The arguments are those of ``run_on``."""
        self._pool = pool
        self._ranks = ranks
        self._timeout = timeout
        self._debugged = debugged
        self.outcomes = [
            Outcome(index, rank.pid, ended_on_purpose=index in dying) for index, rank in enumerate(ranks)
        ]
        self._pending = set(range(len(ranks)))
        self._first_failure: float | None = None
        self._aborted_at: float | None = None

    def run(self, calls: Sequence[object]) -> list[Outcome]:
        """Sends each rank its call, and waits until all have ended.

        Ranks that cannot be used again are ended. An interrupt also ends those that still run the call.
        """
        for rank, call in zip(self._ranks, calls, strict=True):
            for output in rank.outputs:
                output.clear()
            with contextlib.suppress(OSError):  # it has just died, which the pipe will tell
                messages.send(rank.pipe, call)
        try:
            self._wait()
        finally:
            for index in sorted(self._pending):
                self._pool.kill(self._ranks[index])
            for outcome, rank in zip(self.outcomes, self._ranks, strict=True):
                outcome.stdout, outcome.stderr = (output.text() for output in rank.outputs)
        for outcome, rank in zip(self.outcomes, self._ranks, strict=True):
            if outcome.done is not None and outcome.done.left:
                self._pool.retire(rank)
        return self.outcomes

    def _wait(self) -> None:
        until = None if self._debugged is not None else time.monotonic() + self._timeout
        while self._pending:
            now = time.monotonic()
            if until is not None and now >= until and self._first_failure is None:
                self._end_in_time(now)
            if self._first_failure is not None and not self._is_being_debugged():
                if self._aborted_at is None and now >= self._first_failure + _SECONDS_TO_FAIL_TOO:
                    self._abort(now)
                if self._aborted_at is not None and now >= self._aborted_at + _SECONDS_TO_COME_FREE:
                    self._describe()
                    for index in self._pending:
                        self.outcomes[index].was_ended = True
                    return
            self._read(self._next_step(now, until))

    def _is_being_debugged(self) -> bool:
        index = self._debugged
        return index in self._pending and self.outcomes[index].failed_at is None

    def _next_step(self, now: float, until: float | None) -> float:
        """Returns for how many seconds only the ranks decide what comes next."""
        times = [until] if self._first_failure is None else [self._first_failure + _SECONDS_TO_FAIL_TOO]
        if self._aborted_at is not None:
            times = [self._aborted_at + _SECONDS_TO_COME_FREE]
        # A death is told by the template, whose pipe is waited for too. A rank without template is looked at.
        return max(0.0, min([time - now for time in times if time is not None] + [0.5]))

    def _read(self, seconds: float) -> None:
        pipes = {self._ranks[index].pipe: index for index in self._pending}
        ready = wait([*pipes, *self._pool.pipes_of_ends()], seconds)
        for pipe in ready:
            if pipe in pipes:
                self._receive(pipes[pipe])
        for index in list(self._pending):
            if not self._pool.runs(self._ranks[index]):
                self._receive_rest(index)

    def _receive(self, index: int) -> None:
        try:
            self._handle(index, messages.receive(self._ranks[index].pipe))
        except (EOFError, OSError):
            # The process ends just now, or has closed the pipe.
            until = time.monotonic() + _SECONDS_TO_COME_FREE
            while self._pool.runs(self._ranks[index]) and time.monotonic() < until:
                time.sleep(0.001)
            if self._pool.runs(self._ranks[index]):
                self._pool.kill(self._ranks[index])
                self._ranks[index].status = -signal.SIGKILL
            self._note_death(index)

    def _receive_rest(self, index: int) -> None:
        """Reads what a rank that has ended has sent before."""
        pipe = self._ranks[index].pipe
        try:
            while index in self._pending and pipe.poll():
                self._handle(index, messages.receive(pipe))
        except (EOFError, OSError):
            pass
        self._note_death(index)

    def _handle(self, index: int, message: object) -> None:
        outcome = self.outcomes[index]
        if isinstance(message, Failing):
            outcome.failed_at = message.at
            outcome.was_aborted = self._aborted_at is not None and message.at > self._aborted_at
            self._note_failure(message.at)
        elif isinstance(message, Leaving):
            outcome.ended_on_purpose = True
        elif isinstance(message, Description):
            outcome.description = message.text
        elif isinstance(message, Done):
            outcome.done = message
            self._pending.discard(index)

    def _note_failure(self, at: float) -> None:
        self._first_failure = at if self._first_failure is None else min(self._first_failure, at)

    def _note_death(self, index: int) -> None:
        if index not in self._pending:
            return
        outcome = self.outcomes[index]
        self._pending.discard(index)
        outcome.status = self._ranks[index].status
        self._pool.retire(self._ranks[index])
        if not outcome.ended_on_purpose:
            outcome.failed_at = outcome.failed_at or time.monotonic()
            self._note_failure(outcome.failed_at)

    def _abort(self, now: float) -> None:
        self._aborted_at = now
        self._order(Order.ABORT)

    def _end_in_time(self, now: float) -> None:
        """Frees the ranks that still run when the time is over, and keeps where they were."""
        self._describe()
        for index in self._pending:
            self.outcomes[index].was_late = True
        self._note_failure(now)
        self._abort(time.monotonic())

    def _describe(self) -> None:
        """Asks the ranks that still run where their threads are."""
        asked = set(self._pending)
        self._order(Order.DESCRIBE)
        until = time.monotonic() + _SECONDS_TO_DESCRIBE
        while time.monotonic() < until and self._undescribed(asked):
            self._read(0.05)
        for index in self._undescribed(asked):
            # No thread of Python runs. This writes the stacks to the rank's stderr without Python.
            os.kill(self._ranks[index].pid, signal.SIGUSR1)
        if self._undescribed(asked):
            time.sleep(0.2)

    def _undescribed(self, asked: set[int]) -> list[int]:
        return [index for index in asked & self._pending if not self.outcomes[index].description]

    def _order(self, order: Order) -> None:
        for index in self._pending:
            with contextlib.suppress(OSError):  # it has just died, which the pipe will tell
                messages.send(self._ranks[index].pipe, order)


def run_on(
    pool: Pool,
    file: str,
    size: int,
    call_of: Callable[[int, tuple[int, ...]], Any],
    timeout: float,
    dying: Sequence[int] = (),
    debugged: int | None = None,
) -> tuple[list[Outcome], float]:
    """Runs a call on ranks of a pool.

    Args:
        file: of the tests that ranks have to know.
        call_of: returns the call of a rank, given its number and the pids of all.
        timeout: seconds for the call.
        dying: ranks that may end.
        debugged: a rank with a debugger. Nothing ends the ranks then, while it has not failed.

    Returns:
        What became of each rank, and how many seconds it took to start them.

    Raises:
        RanksError: ranks cannot be started.
    """
    began = time.monotonic()
    ranks = pool.ranks(size, file)
    started = time.monotonic() - began
    pids = tuple(rank.pid for rank in ranks)
    run = Run(pool, ranks, dying, timeout, debugged)
    return run.run([call_of(index, pids) for index in range(size)]), started
