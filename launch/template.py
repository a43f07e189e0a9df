"""The template: a process that has imported torch, and from which vrun forks the ranks.

Importing torch costs more than a second of a core, and a fork costs milliseconds. The template is forked from
vrun itself before vrun starts a thread or asks about cards. It never does either, so a fork of it is as good
as a new process: environment variables that concern cards and threads take effect in the rank.

vrun and the template speak over a pipe. vrun sends a ``Job``, and the template answers with ``Started`` or
``Refused``. It sends ``Ended`` when a rank has ended, for only its parent learns a process's exit status.
"""

import ctypes
import dataclasses
import gc
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe, wait

from . import forked_rank
from .forked_rank import Job

_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True)
class Started:
    pid: int


@dataclasses.dataclass(frozen=True)
class Refused:
    """The template cannot fork a rank. ``fatal`` tells that starting it in another way would not help."""

    reason: str
    fatal: bool = False


@dataclasses.dataclass(frozen=True)
class Ended:
    pid: int
    status: int  # as subprocess.Popen.returncode: -n if signal n ended it


def start(modules: Sequence[str]) -> tuple[int, Connection]:
    """Forks the template. Returns its pid, and the end of the pipe to it.

    Call this before the process starts a thread or asks about cards. In the ranks the call does not return:
    they run their scripts, and end.

    Args:
        modules: the template imports them besides torch.
    """
    ours, its = Pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        its.close()
        return pid, ours
    ours.close()
    # What the terminal sends to vrun's group is passed on by vrun.
    os.setsid()
    end_with_parent(signal.SIGKILL)
    job = _serve(its, _import(modules))
    if job is None:
        os._exit(0)  # what was registered for the exit belongs to vrun and to the ranks
    forked_rank.run(job)


def end_with_parent(number: signal.Signals) -> None:
    """Has the kernel send this process a signal when its parent ends, in whatever way."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it has ended before the call
        os.kill(os.getpid(), number)


def _import(modules: Sequence[str]) -> Refused | None:
    """Imports what vrun's --preload names. Returns what is wrong with them, or None."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            return Refused(f"--preload {name}: {type(error).__name__}: {error}", fatal=True)
    # The collector would write to the pages of all these objects in every rank, which unshares them.
    gc.collect()
    gc.freeze()
    return None


def _serve(agent: Connection, unusable: Refused | None) -> Job | None:
    """Starts ranks and reports their ends, until vrun closes the pipe. Then returns None.

    In a rank, returns its job.
    """
    ranks: dict[int, int] = {}  # the descriptor of a running rank -> its pid
    while True:
        for ready in wait([agent, *ranks]):
            if isinstance(ready, int):
                agent.send(_ended(ready, ranks.pop(ready)))
                continue
            try:
                job: Job = agent.recv()
            except EOFError:
                return None
            refused = unusable or _reason_not_to_fork()
            if refused:
                agent.send(refused)
            elif pid := _fork():
                ranks[os.pidfd_open(pid)] = pid
                agent.send(Started(pid))
            else:
                agent.close()
                for descriptor in ranks:
                    os.close(descriptor)
                return job


def _ended(descriptor: int, pid: int) -> Ended:
    os.close(descriptor)
    return Ended(pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _reason_not_to_fork() -> Refused | None:
    """Returns why a fork of this process would not be as good as a new one, or None."""
    from vccl import _C

    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return Refused(f"a preloaded module has started {threads - 1} threads, which a fork would lose")
    if _C.is_initialized():
        return Refused("a preloaded module has used a card, which a fork cannot share")
    return None


def _fork() -> int:
    """Forks a rank in a session of its own. Returns 0 in the rank, and its pid in the template."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        end_with_parent(signal.SIGKILL)
        os.setsid()
        os.close(write)
        return 0
    os.close(write)
    # vrun may signal the rank's process group as soon as it knows the pid, so the group has to exist. The
    # read ends when the rank has closed its end.
    os.read(read, 1)
    os.close(read)
    return pid
