"""Started ranks, kept between tests: importing torch takes seconds, a fork milliseconds."""

import dataclasses
import fcntl
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Container, Iterator, Mapping
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import send_handle
from typing import Any

from vccl.launch.forks import Ended, Started
from vccl.launch.hosts import kill_tree

from .messages import Begin, Fork, Refused

# Seconds for imports, of torch and of the tests.
_SECONDS_TO_IMPORT = 600.0
# Seconds in which a rank that is not needed any more writes its coverage and ends.
_SECONDS_TO_END = 5.0

# How Python is told to run the template. What lies in the current folder must not take the place of a module,
# such as torch. Python 3.10 has no -P for that.
if sys.version_info >= (3, 11):
    _TEMPLATE = ["-P", "-m", "vccl.testing.template"]
else:
    _TEMPLATE = [
        "-c",
        "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
        "runpy.run_module('vccl.testing.template', run_name='__main__', alter_sys=True)",
    ]


class RanksError(Exception):
    """Ranks cannot be started. The text says why."""


class Output:
    """The output of a rank on one descriptor. The file has no name, and outlives the rank."""

    def __init__(self, name: str) -> None:
        self.descriptor = os.memfd_create(name)
        # A rank and its children share the place at which they write, even after clear().
        fcntl.fcntl(self.descriptor, fcntl.F_SETFL, os.O_APPEND)

    def clear(self) -> None:
        os.ftruncate(self.descriptor, 0)

    def text(self) -> str:
        size = os.fstat(self.descriptor).st_size
        return os.pread(self.descriptor, size, 0).decode(errors="replace")

    def close(self) -> None:
        os.close(self.descriptor)


class Rank:
    """A started rank, and the pipe to it."""

    def __init__(self, index: int, file: str) -> None:
        self.file = file
        self.pipe, self.theirs = Pipe()
        self.outputs = (Output(f"rank {index} stdout"), Output(f"rank {index} stderr"))
        self.pid = 0
        self.status: int | None = None
        self.process: subprocess.Popen[bytes] | None = None  # if it is not a fork of the template

    def started(self, pid: int) -> None:
        self.pid = pid
        self.theirs.close()

    def handles(self) -> list[int]:
        return [self.theirs.fileno(), *(output.descriptor for output in self.outputs)]

    def kill(self) -> None:
        """Ends it, and all that it has started."""
        if self.pid:
            kill_tree(self.pid)

    def close(self) -> None:
        for closable in (self.pipe, self.theirs, *self.outputs):
            closable.close()


@dataclasses.dataclass
class Starter:
    """A process that imports torch and the tests, and its pipe."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    output: Output

    @classmethod
    def start(cls, begin: Begin, terminal: bool, alone: bool) -> "Starter":
        """Starts it.

        Args:
            terminal: it reads and prints where this process does, for ranks that have to.
            alone: it does not fork ranks, but will be one.
        """
        pipe, theirs = Pipe()
        command = [sys.executable, *_TEMPLATE, str(os.getpid()), str(theirs.fileno())]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        output = Output("template")
        process = subprocess.Popen(
            command + (["--alone"] if alone else []),
            pass_fds=[theirs.fileno()],
            stdin=None if terminal else subprocess.DEVNULL,
            stdout=None if terminal else output.descriptor,
            stderr=None if terminal else output.descriptor,
            env=environment,
            cwd=begin.folder,
            start_new_session=True,
        )
        theirs.close()
        starter = cls(process, pipe, output)
        starter.pipe.send(begin)
        return starter

    def ask(self, request: Fork, rank: Rank) -> None:
        """Sends a request. The answer comes later."""
        self.pipe.send(request)
        for handle in rank.handles():
            send_handle(self.pipe, handle, self.process.pid)

    def close(self) -> str:
        """Ends the process, and with it the ranks that are its forks. Returns what it has printed."""
        self.pipe.close()
        try:
            self.process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:  # it is in the middle of an import
            self.process.kill()
            self.process.wait()
        text = self.output.text()
        self.output.close()
        status = self.process.returncode
        how = f"Signal {-status} has ended it" if status < 0 else f"Its exit status is {status}"
        return f"{how}, and its last words are:\n{text}" if text else f"{how}, and it has printed nothing."


class Pool:
    """Starts ranks when they are needed, and keeps them."""

    def __init__(self, begin: Begin, terminals: Container[int], environment: Mapping[str, str]) -> None:
        """Starts nothing yet.

        Args:
            begin: the data that a process needs in order to collect tests.
            terminals: the ranks that read and print where this process does.
            environment: variables of all ranks.
        """
        self._begin = begin
        self._terminals = terminals
        self._environment = dict(environment)
        self._ranks: list[Rank | None] = []
        self._template: Starter | None = None
        self._retired: list[Rank] = []
        self._store: Any = None
        self.numbers = itertools.count(1)
        self.reason_for_no_forks = ""
        self._refused = ""  # why no test can have ranks

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the store of all ranks, which runs in this process."""
        if self._store is None:
            import torch.distributed as dist

            self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return "127.0.0.1", self._store.port

    def ranks(self, size: int, file: str) -> list[Rank]:
        """Returns ranks that know the tests of a file. Those that run and know it are used again.

        Raises:
            RanksError: they cannot be started.
        """
        if self._refused:
            raise RanksError(self._refused)
        self._ranks += [None] * (size - len(self._ranks))
        for index in range(size):
            rank = self._ranks[index]
            if rank is not None and (rank.file != file or not self.runs(rank)):
                self.retire(rank)
        needed = [index for index in range(size) if self._ranks[index] is None]
        try:
            for index, rank in self._start(needed, file):
                self._ranks[index] = rank
        except (EOFError, OSError) as error:
            words = self._drop_template()
            raise RanksError(f"the process that imports {file} for the ranks has ended. {words}") from error
        return [rank for rank in self._ranks[:size] if rank is not None]

    def runs(self, rank: Rank) -> bool:
        """Whether a rank has not ended."""
        self._read_ends()
        if rank.process is not None and rank.status is None:
            rank.status = rank.process.poll()
        return rank.status is None

    def retire(self, rank: Rank) -> None:
        """Ends a rank that is idle. Another one takes its place when it is needed."""
        self._forget(rank)
        rank.pipe.close()
        self._retired.append(rank)

    def kill(self, rank: Rank) -> None:
        """Ends a rank at once. What it has printed can be read until ranks are started again."""
        self._forget(rank)
        rank.kill()
        self._retired.append(rank)

    def end_ranks(self) -> None:
        """Ends all ranks. New ones are started when they are needed."""
        for rank in [rank for rank in self._ranks if rank is not None]:
            self.retire(rank)

    def pipes_of_ends(self) -> list[Connection]:
        """Returns the descriptors that become readable when a rank has ended, besides the rank's own pipe."""
        return [self._template.pipe] if self._template else []

    def close(self) -> None:
        """Ends all ranks, and the process that forks them."""
        self.end_ranks()
        until = time.monotonic() + _SECONDS_TO_END
        while any(self.runs(rank) for rank in self._retired) and time.monotonic() < until:
            time.sleep(0.002)
        for rank in self._retired:
            if self.runs(rank):
                rank.kill()
        self._drop_template()
        self._reap()
        self._store = None

    def _forget(self, rank: Rank) -> None:
        self._ranks = [None if other is rank else other for other in self._ranks]

    def _reap(self) -> None:
        """Closes what belongs to ranks that have ended."""
        for rank in self._retired:
            if rank.process is not None and not self._template:
                rank.process.wait()
        ended = [rank for rank in self._retired if not self.runs(rank) or not self._template]
        for rank in ended:
            rank.close()
            self._retired.remove(rank)

    def _start(self, indices: list[int], file: str) -> Iterator[tuple[int, Rank]]:
        """Starts ranks side by side."""
        self._reap()
        if self.reason_for_no_forks:
            yield from self._start_alone(indices, file)
            return
        if indices and (self._template is None or self._template.process.poll() is not None):
            self._drop_template()
            self._template = Starter.start(self._begin, bool(self._terminals), alone=False)
        for index in indices:
            assert self._template is not None
            rank = Rank(index, file)
            self._template.ask(self._request(index, file), rank)
            answer = self._answer(self._template)
            if isinstance(answer, Refused):
                rank.close()
                self._refused = answer.reason if answer.for_good else ""
                if answer.fatal:
                    raise RanksError(answer.reason)
                self.reason_for_no_forks = answer.reason
                yield from self._start_alone(indices[indices.index(index) :], file)
                return
            rank.started(answer.pid)
            yield index, rank

    def _start_alone(self, indices: list[int], file: str) -> Iterator[tuple[int, Rank]]:
        started = []
        for index in indices:
            starter = Starter.start(self._begin, bool(self._terminals), alone=True)
            rank = Rank(index, file)
            rank.process = starter.process
            rank.pid = starter.process.pid
            starter.ask(self._request(index, file), rank)
            started.append((index, rank, starter))
        try:
            for index, rank, starter in started:
                try:
                    answer = self._answer(starter)
                    reason = answer.reason if isinstance(answer, Refused) else ""
                except (EOFError, OSError):
                    reason = f"rank {index} has ended while it imported {file}:\n{starter.output.text()}"
                if reason:
                    raise RanksError(reason)
                rank.started(rank.pid)
                yield index, rank
        finally:
            for _, rank, starter in started:
                starter.pipe.close()
                starter.output.close()
                if rank not in self._ranks:
                    rank.kill()
                    self._retired.append(rank)

    def _request(self, index: int, file: str) -> Fork:
        return Fork(file, self._environment, index in self._terminals)

    def _answer(self, starter: Starter) -> Started | Refused:
        until = time.monotonic() + _SECONDS_TO_IMPORT
        while starter.pipe.poll(max(0.0, until - time.monotonic())):
            message = starter.pipe.recv()
            if not isinstance(message, Ended):
                return message
            self._note_end(message)
        raise RanksError(f"the tests' imports have not ended after {_SECONDS_TO_IMPORT:.0f} s")

    def _read_ends(self) -> None:
        if self._template is None:
            return
        try:
            while self._template.pipe.poll():
                self._note_end(self._template.pipe.recv())
        except (EOFError, OSError):
            self._drop_template()

    def _note_end(self, message: Ended) -> None:
        for rank in (*self._ranks, *self._retired):
            if rank is not None and rank.pid == message.pid and rank.status is None:
                rank.status = message.status

    def _drop_template(self) -> str:
        """Ends the template. The kernel ends its ranks with it. Returns what it has printed."""
        if self._template is None:
            return ""
        template, self._template = self._template, None
        words = template.close()
        for rank in (*self._ranks, *self._retired):
            if rank is not None and rank.process is None and rank.status is None:
                rank.status = -signal.SIGKILL
        return words
