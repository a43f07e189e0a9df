"""The ranks of random cases: what a rank tells while it runs, and how a server forks and watches ranks.

Importing torch costs seconds and a fork milliseconds, so a server forks the ranks of all cases.
"""

import collections
import contextlib
import ctypes
import faulthandler
import json
import os
import re
import resource
import select
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import vccl  # noqa: F401

PATIENCE = 300.0  # seconds that ranks get to come to what goes wrong, or to end after it
PR_SET_CHILD_SUBREAPER = 36
# A process keeps the descriptors of its own threads for the next group.
OF_THREADS = ("eventpoll", "eventfd", "timerfd")


# ---------------------------------------------------------------------------------------------------------
# A rank


def footprint() -> collections.Counter:
    """This process's descriptors and shared mappings by what they are, without the cards' memory and without
    the flight recorder and the memory for stacks, which a process has from its first group on."""
    found: collections.Counter = collections.Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if "memfd:vdev" not in link and "/vdev-usage-" not in link:
            found["descriptor " + re.sub(r"\d+", "*", link)] += 1
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:" in line and "memfd:vdev" not in line:
            found["mapping " + line.split(maxsplit=5)[5]] += 1
    for kept in (
        "descriptor /memfd:vccl-flight-recorder",
        "mapping /memfd:vccl-flight-recorder",
        "descriptor /memfd:vccl-stacks",
    ):
        found[f"{kept} (deleted)"] -= 1
    return +found


class Rank:
    """One rank's run: on its way it tells what happens as lines of JSON on a pipe that all ranks share."""

    def __init__(self, case: Any, rank: int, pipe: int) -> None:
        self.case, self.rank, self.pipe = case, rank, pipe

    def tell(self, event: str, **more: Any) -> None:
        line = json.dumps({"rank": self.rank, "event": event, "time": time.monotonic(), **more})
        os.write(self.pipe, line.encode()[:4000] + b"\n")  # in one piece, being less than PIPE_BUF

    def work_through(self) -> None:
        """Makes a group and works with it, until the case is over or an error is raised."""
        raise NotImplementedError

    def dies_of(self, error: Exception) -> bool:
        """Whether the error is this rank's death, and no answer to what happened to another rank."""
        return False

    def run(self) -> int:
        """Returns the exit status."""
        torch.accelerator.set_device_index(self.rank)
        before = footprint()
        try:
            self.work_through()
            self.tell("ended")
        except Exception as error:
            if self.dies_of(error):
                raise
            where = traceback.format_exc(limit=-4)[-1200:]
            self.tell("raised", type=type(error).__name__, text=str(error)[:1500], where=where)
        if dist.is_initialized():
            dist.destroy_process_group()
        left = footprint() - before
        left = {what: count for what, count in left.items() if not any(kind in what for kind in OF_THREADS)}
        self.tell("destroyed", left=left)
        return 0


# ---------------------------------------------------------------------------------------------------------
# The server


@dataclass
class Outcome:
    """What was seen of a case."""

    events: list[dict[str, Any]] = field(default_factory=list)
    gone: dict[int, float] = field(default_factory=dict)  # rank: when its process was seen to have ended
    status: dict[int, int] = field(default_factory=dict)
    silent: list[int] = field(default_factory=list)  # ranks that had to be killed
    strays: list[int] = field(default_factory=list)  # processes that ranks left behind
    printed: str = ""

    def event(self, rank: int, name: str) -> dict[str, Any] | None:
        return next((e for e in self.events if e["rank"] == rank and e["event"] == name), None)

    def faults_of_end(self, rank: int) -> Iterator[str]:
        """Yields what is wrong with the end of a rank that was to destroy its group and end."""
        destroyed = self.event(rank, "destroyed")
        if not destroyed or rank in self.silent or self.status[rank] != 0:
            yield f"rank {rank} did not end well: {self.status.get(rank)}, {destroyed}"
        elif destroyed["left"]:
            yield f"rank {rank} left behind {destroyed['left']}"

    def faults_of_server(self) -> Iterator[str]:
        """Yields what is wrong with the case as a whole."""
        if self.strays:
            yield f"processes were left behind: {self.strays}"


class Attendant:
    """Watches the ranks until they have ended."""

    def __init__(self, case: Any, pids: dict[int, int], pipe: int, outcome: Any) -> None:
        """`pids` are the processes by rank."""
        self.case, self.pids, self.pipe, self.outcome = case, pids, pipe, outcome
        self._lines = b""

    def attend(self) -> None:
        """Makes happen what the case says, and returns when it is time that all ranks have ended."""
        raise NotImplementedError

    def until(self, reached: Callable[[], bool], seconds: float = PATIENCE) -> bool:
        """Watches until that is so, all have ended, or the time is over. Returns whether it is so."""
        limit = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > limit or self.all_have_ended():
                return False
            self._read_events(0.01)
            self._reap()
        return True

    def all_have_ended(self) -> bool:
        return len(self.outcome.status) == len(self.pids)

    def finish(self) -> None:
        """Ends every process that is left, and reads what the ranks have told until then."""
        self.outcome.silent = [rank for rank in self.pids if rank not in self.outcome.status]
        for number in (signal.SIGUSR1, signal.SIGKILL):  # the first one puts their stacks into the log
            for rank in self.outcome.silent:
                os.kill(self.pids[rank], number)
            if self.outcome.silent and number == signal.SIGUSR1:
                time.sleep(0.5)
        self.until(lambda: False)
        # Strays are ours by now. They hold no pipe that we read to its end: nobody waits for them.
        for name in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            self.outcome.strays.append(int(name))
            os.kill(int(name), signal.SIGKILL)
            os.waitpid(int(name), 0)
        while self._read_events(0):
            pass

    def _read_events(self, seconds: float) -> bool:
        """Reads what is in the pipe, for which it waits that long. Returns whether there was something."""
        if not select.select([self.pipe], [], [], seconds)[0]:
            return False
        read = os.read(self.pipe, 1 << 16)
        self._lines += read
        while b"\n" in self._lines:
            line, _, self._lines = self._lines.partition(b"\n")
            self.outcome.events.append(json.loads(line))
        return bool(read)  # a pipe that nobody can write to any more is at its end, and always ready

    def _reap(self) -> None:
        ranks = {pid: rank for rank, pid in self.pids.items()}
        for pid, status in ended_children():
            if pid in ranks:
                self.outcome.gone[ranks[pid]] = time.monotonic()
                self.outcome.status[ranks[pid]] = os.waitstatus_to_exitcode(status)
            else:
                self.outcome.strays.append(pid)


def ended_children() -> Iterator[tuple[int, int]]:
    """Process number and status of each child that has ended."""
    with contextlib.suppress(ChildProcessError):  # there is none, running or ended
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, status


def play(
    size: int,
    become: Callable[[int, int], Rank],
    attendant: Callable[[dict[int, int], int], Attendant],
) -> Rank | Outcome:
    """Forks the ranks of a case. Returns its outcome, and a Rank in each process that is to be one.

    ``become(rank, pipe)`` makes the Rank, and ``attendant(pids, pipe)`` what watches them.
    """
    reading, writing = os.pipe()
    pids = {}
    with tempfile.TemporaryFile(mode="a+", errors="replace") as log:
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                os.close(reading)
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                faulthandler.register(signal.SIGUSR1, all_threads=True)
                return become(rank, writing)
            pids[rank] = pid
        os.close(writing)
        watching = attendant(pids, reading)
        watching.attend()
        watching.finish()
        os.close(reading)
        log.seek(0)
        watching.outcome.printed = log.read()[-20_000:]
    return watching.outcome


def serve(play: Callable[[dict[str, Any]], Rank | Outcome], commands: int, answers: int) -> Rank | None:
    """Plays the orders that come on the pipe; returns a Rank in a process that is to be one, None at the end.

    A rank returns through here to the top of the program, so that it ends as any program does.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # what ranks leave behind becomes ours
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    assert len(os.listdir("/proc/self/task")) == 1, "only a process of one thread can be forked"
    with open(commands) as lines:
        for line in lines:
            outcome = play(json.loads(line))
            if isinstance(outcome, Rank):
                os.close(answers)
                return outcome
            os.write(answers, json.dumps(asdict(outcome)).encode() + b"\n")
    return None
