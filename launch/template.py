"""The template: a process that has imported torch, and from which vrun forks the ranks.

Importing torch costs more than a second of a core, and a fork costs milliseconds. The template is forked from
vrun itself before vrun starts a thread or asks about cards. It does neither, unless a preloaded module does,
and then it refuses to fork. Environment variables that concern cards and threads therefore take effect in the
rank, as in a new process.

vrun and the template speak over a pipe. vrun sends a ``Job``, and the template answers with ``Started`` or
``Refused``. It sends ``Ended`` when a rank has ended, for only its parent learns a process's exit status.
"""

import dataclasses
import faulthandler
import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe, wait

from . import blas_threads, forked_rank, forks
from .forked_rank import Job
from .forks import Ended, Started


@dataclasses.dataclass(frozen=True)
class Refused:
    """The template cannot fork a rank. ``fatal`` tells that starting it in another way would not help."""

    reason: str
    fatal: bool = False


def start(modules: Sequence[str], folder: str) -> tuple[int, Connection]:
    """Forks the template. Returns its pid, and the end of the pipe to it.

    Call this before the process starts a thread or asks about cards. In the ranks the call does not return:
    they run their scripts, and end.

    Args:
        modules: the template imports them besides torch.
        folder: where modules are looked for first.
    """
    blas_threads.leave_one()
    ours, its = Pipe()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, forks.SIGNALS)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        its.close()
        return pid, ours
    try:
        os.setsid()
        forks.end_with_parent(parent)
        ours.close()
        forks.close_inherited()
        _show_stacks_on_sigquit()
        job = _serve(its, import_modules(modules, folder), before)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    if job is None:
        os._exit(0)  # what was registered for the exit belongs to vrun and to the ranks
    forked_rank.run(job)


def _show_stacks_on_sigquit() -> None:
    """Lets the forks of this process write their stacks to stderr on SIGQUIT, and go on.

    The template blocks the signal. Its forks have the handler from their first moment. It is none of
    Python's, which would not run in a rank that waits in C++.
    """
    if sys.stderr is not None and signal.getsignal(signal.SIGQUIT) == signal.SIG_DFL:
        faulthandler.register(signal.SIGQUIT, file=sys.stderr, all_threads=True)


def import_modules(modules: Sequence[str], folder: str) -> Refused | None:
    """Imports the modules of vrun's --preload. Returns why this process cannot fork ranks, or None."""
    before = list(sys.path)
    sys.path.insert(0, folder)
    for name in modules:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            return Refused(f"--preload {name}: {type(error).__name__}: {error}", fatal=True)
    sys.path[:] = before
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return Refused(f"this system has no descriptors of processes ({error})")
    # The collector would write to the pages of all these objects in every rank, which unshares them.
    gc.collect()
    forked_rank.remember_template()
    gc.freeze()
    return None


def _serve(agent: Connection, unusable: Refused | None, mask: set[int | signal.Signals]) -> Job | None:
    """Starts ranks and reports their ends, until vrun closes the pipe. Then returns None.

    In a rank, returns its job. ``mask`` is the signal mask of ranks.
    """
    running: dict[int, int] = {}  # the descriptor of a running rank -> its pid
    ended: list[int] = []
    while True:
        for ready in wait([agent, *running]):
            try:
                if isinstance(ready, int):
                    ended.append(running.pop(ready))
                    agent.send(Ended(ended[-1], forks.status_of(ready)))
                    continue
                job: Job = agent.recv()
                # vrun has no use for the pids any more: it has closed the ranks of an earlier attempt.
                while ended:
                    os.waitpid(ended.pop(), 0)
                if refused := unusable or reason_not_to_fork():
                    agent.send(refused)
                    continue
            except (EOFError, OSError):  # vrun has closed the pipe, or has ended
                forks.end_all([*running.values(), *ended])
                return None
            try:
                descriptor, pid = forks.fork(mask)
            except OSError as error:
                agent.send(Refused(f"a fork failed: {error}"))
                continue
            if pid == 0:
                agent.close()
                for other in running:
                    os.close(other)
                return job
            running[descriptor] = pid
            agent.send(Started(pid))


def reason_not_to_fork() -> Refused | None:
    """Returns why a fork of this process would not be as good as a new process, or None."""
    from vccl import _C

    if threads := forks.threads_besides_this_one():
        return Refused(f"a preloaded module has started a thread ({threads} run), which a fork would lose")
    if _C.environment_was_read():
        return Refused("a preloaded module has asked about cards, whose variables are read once")
    return None
