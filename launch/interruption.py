"""Ends a run on Ctrl-C: within a second, and at once on the second one. SIGQUIT shows where ranks are.

torchrun passes SIGINT on to the ranks and waits up to 30 seconds for them, whatever comes meanwhile. That is
right for SIGTERM, by which a scheduler lets ranks save their state, and stays so. Who presses Ctrl-C wants
the prompt back.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch.distributed.elastic.multiprocessing import SignalException

from . import stacks

# Seconds that ranks have to end by themselves after the first Ctrl-C.
PATIENCE = 0.6


class Interruption:
    """Handles SIGINT in the agent."""

    def __init__(self, patience: float | None) -> None:
        """Takes the seconds after which ranks are killed, or None where torchrun's option gives a time."""
        self._patience = patience
        self._interrupted = False
        self._ranks: list[Any] = []
        self._of_torchrun: Any = None  # its handler of SIGQUIT
        self._starting = self._put_off = False

    def begin_attempt(self) -> None:
        """Forgets the ranks of an earlier attempt: their pids may belong to other processes by now."""
        self._ranks.clear()

    def add(self, rank: Any) -> None:
        """Adds a rank that has been started: subprocess.Popen, or starting.ForkedRank."""
        self._ranks.append(rank)

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Puts SIGQUIT off inside a ``with`` block, in which a rank is started and added.

        The rank may run before it is added, and would not show its stack.
        """
        self._starting = True
        try:
            yield
        finally:
            self._starting = False
        if self._put_off:
            self._put_off = False
            self._show_stacks(signal.SIGQUIT, None)

    def take_signal(self) -> None:
        """Handles SIGINT from now on, unless it is ignored. torchrun sets a handler at each start."""
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._interrupt)
        # torchrun would end the ranks. Where they cannot show their stacks, that is left to it.
        if signal.getsignal(signal.SIGQUIT) != signal.SIG_IGN:
            self._of_torchrun = signal.getsignal(signal.SIGQUIT)
            signal.signal(signal.SIGQUIT, self._show_stacks)

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Prepares for SIGINT inside a ``with`` block, which leaves no process of an interrupted run behind.

        Before there are ranks, Python's own handler is the better one: torchrun's rendezvous swallows
        SignalException, but not KeyboardInterrupt.
        """
        before = {
            number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGALRM)
        }
        signal.signal(signal.SIGALRM, lambda number, frame: self.kill())
        try:
            yield
        finally:
            if self._interrupted:
                signal.setitimer(signal.ITIMER_REAL, 0)
                self.kill()  # what a rank has left in its process group
            for number, handler in before.items():
                signal.signal(number, handler)

    def kill(self) -> None:
        """Kills the process groups of the ranks. A handler may call this at any point of the agent."""
        for rank in self._ranks:
            if rank.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(rank.pid, signal.SIGKILL)

    def _show_stacks(self, number: int, frame: FrameType | None) -> None:
        """Lets the ranks write where they are, and go on."""
        if self._starting:
            self._put_off = True
            return
        running = [rank for rank in self._ranks if rank.returncode is None]
        if callable(self._of_torchrun) and not all(hasattr(rank, "shows_stacks") for rank in running):
            self._of_torchrun(number, frame)
        stacks.show(rank.pid for rank in running)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted:
            self.kill()
            raise KeyboardInterrupt
        self._interrupted = True
        if self._patience is not None:
            signal.setitimer(signal.ITIMER_REAL, self._patience)
        # torchrun's agent passes the signal on to the ranks and waits for them.
        raise SignalException("Ctrl-C", signal.SIGINT)


def signal_behind(error: BaseException) -> int | None:
    """Returns the signal during whose handling an error was raised, or None if there was none."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, SignalException):
            return int(behind.sigval)
        if isinstance(behind, KeyboardInterrupt):
            return int(signal.SIGINT)
        behind = behind.__context__
    return None
