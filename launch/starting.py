"""Starts the ranks of a torchrun agent as forks of the template, or as torchrun does where that cannot be."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from . import forks, template
from .forked_rank import Job
from .interruption import Interruption
from .relay import Relay

# Seconds for the answer of the template. It imports what --preload names before it answers.
_PATIENCE = 600.0
# Seconds that the template has to end its ranks and itself.
_SECONDS_TO_END = 1.0


class PreloadError(Exception):
    """A module that --preload names cannot be imported."""


class Template:
    """The agent's end of the pipe to the template."""

    def __init__(self, modules: Sequence[str], folder: str) -> None:
        """Forks the template. See ``template.start`` for when and for its arguments."""
        self._pid, self._pipe = template.start(modules, folder)
        self._ended: dict[int, int] = {}
        self._running: set[int] = set()
        self._told = False

    def start(self, job: Job) -> "ForkedRank | None":
        """Starts a rank. Returns None if the template cannot, of which it tells once on stderr.

        Raises:
            PreloadError: a module that --preload names cannot be imported.
        """
        if self._pipe.closed:
            return None
        try:
            self._pipe.send(job)
            until = time.monotonic() + _PATIENCE
            while (answer := self._receive(until)) is None:
                pass
        except (EOFError, OSError, TimeoutError) as error:
            self.close()  # or it would fork the rank later
            answer = template.Refused(f"the process that should fork them does not answer ({error!r})")
        if isinstance(answer, forks.Started):
            self._ended.pop(answer.pid, None)  # of an earlier rank, whose pid is used again
            self._running.add(answer.pid)
            return ForkedRank(answer.pid, self)
        if answer.fatal:
            raise PreloadError(answer.reason)
        if not self._told:
            print(f"vrun: every rank imports torch by itself: {answer.reason}.", file=sys.stderr)
            self._told = True
        return None

    @property
    def closed(self) -> bool:
        return self._pipe.closed

    def status_of(self, pid: int) -> int | None:
        """Returns the exit status of a rank, as Popen has it, or None while it runs. Does not wait."""
        try:
            while not self._pipe.closed and self._pipe.poll():
                self._receive(time.monotonic())
        except (EOFError, OSError):
            self.close()  # the kernel has ended the ranks with the template
        return self._ended.get(pid)

    def close(self) -> None:
        """Ends the template, and with it the ranks that still run. Further calls do nothing."""
        if self._pipe.closed:
            return
        self._pipe.close()
        until = time.monotonic() + _SECONDS_TO_END
        while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > until:  # it is in the middle of a long import, and has no ranks
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                break
            time.sleep(0.002)
        self._ended.update(dict.fromkeys(self._running, -signal.SIGKILL))
        self._running.clear()

    def _receive(self, until: float) -> "forks.Started | template.Refused | None":
        """Reads one message. Keeps the end of a rank and returns None for it; returns what answers a job."""
        if not self._pipe.poll(max(0.0, until - time.monotonic())):
            raise TimeoutError
        # torchrun's handlers raise. Half a message that was read would be lost, and with it the next ones.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, forks.SIGNALS)
        try:
            message = self._pipe.recv()
            if not isinstance(message, forks.Ended):
                return message
            self._ended[message.pid] = message.status
            self._running.discard(message.pid)
            return None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ForkedRank:
    """A rank, as much of subprocess.Popen as torchrun uses."""

    shows_stacks = True  # on SIGQUIT: see launch/template.py

    def __init__(self, pid: int, template: Template) -> None:
        self.pid = pid
        self._template = template

    @property
    def returncode(self) -> int | None:
        """None as long as the template keeps the process, if only as a zombie: its group may be signalled."""
        return self.poll() if self._template.closed else None

    def poll(self) -> int | None:
        return self._template.status_of(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(f"rank with pid {self.pid}", timeout or 0.0)
            time.sleep(0.005)
        return status


@contextlib.contextmanager
def starting_ranks(
    source: Template | None,
    interruption: Interruption,
    relay: Relay | None,
    up: Callable[[list[int]], None],
) -> Iterator[None]:
    """Makes torchrun's agents start ranks in the way of vrun, inside a ``with`` block.

    Args:
        source: ranks are forked from it where that is possible.
        interruption: is told of every rank.
        relay: takes the output of ranks to streams that torchrun does not redirect.
        up: is called with the pids when all ranks of the first attempt have been started.
    """
    pids: list[int] = []

    class Handler(SubprocessHandler):
        def _popen(self, args: tuple, env: dict[str, str]) -> Any:
            if self.local_rank_id == 0:
                interruption.begin_attempt()
                interruption.take_signal()
                if relay:
                    relay.begin_attempt()
            if relay:
                open_ones = [
                    number for number, file in ((1, self._stdout), (2, self._stderr)) if file is None
                ]
                pipes: dict[int, Any] = relay.writers(int(env["RANK"]), open_ones)
                self._stdout = pipes.get(1, self._stdout)
                self._stderr = pipes.get(2, self._stderr)
            with interruption.starting():
                rank = self._forked(args, env) or super()._popen(args, env)
                interruption.add(rank)
            pids.append(rank.pid)
            if len(pids) == int(env["LOCAL_WORLD_SIZE"]):
                up(pids)
            return rank

        def _forked(self, args: tuple, env: dict[str, str]) -> ForkedRank | None:
            # The template opens pipes through this process, which has them open as long as the rank runs.
            own = f"/proc/{os.getpid()}/fd"
            stdout, stderr = (
                None if file is None else f"{own}/{file.name}" if isinstance(file.name, int) else file.name
                for file in (self._stdout, self._stderr)
            )
            job = Job.of(args, env, stdout, stderr)
            return source.start(job) if source and job else None

    hooked: Any = api
    original = hooked.get_subprocess_handler
    hooked.get_subprocess_handler = Handler
    try:
        yield
    finally:
        hooked.get_subprocess_handler = original
