"""The template: a process that has imported torch, and from which vrun forks the ranks.

Importing torch costs more than a second of a core, and a fork costs milliseconds. The template is forked from
vrun itself before vrun starts a thread or asks about cards. It does neither, unless a preloaded module does,
and then it refuses to fork. Environment variables that concern cards and threads therefore take effect in the
rank, as in a new process.

vrun and the template speak over a pipe. vrun sends a ``Job``, and the template answers with ``Started`` or
``Refused``. It sends ``Ended`` when a rank has ended, for only its parent learns a process's exit status.
"""

import contextlib
import dataclasses
import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe, wait

from . import forked_rank
from .forked_rank import Job
from .parent_death import signal_at_death_of_parent

# The template leaves them to vrun. Schedulers send SIGTERM to every process of a job. Ranks that then save
# their state need the template for as long as vrun waits for them.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


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


def start(modules: Sequence[str], folder: str) -> tuple[int, Connection]:
    """Forks the template. Returns its pid, and the end of the pipe to it.

    Call this before the process starts a thread or asks about cards. In the ranks the call does not return:
    they run their scripts, and end.

    Args:
        modules: the template imports them besides torch.
        folder: where modules are looked for first.
    """
    ours, its = Pipe()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        its.close()
        return pid, ours
    try:
        os.setsid()
        _end_with_parent(parent)
        ours.close()
        _close_inherited()
        job = _serve(its, _import(modules, folder), before)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    if job is None:
        os._exit(0)  # what was registered for the exit belongs to vrun and to the ranks
    forked_rank.run(job)


def _end_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, in whatever way."""
    signal_at_death_of_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before the call
        os._exit(1)


def _close_inherited() -> None:
    """Closes what a new process would not inherit from torchrun either: all but the standard streams."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the folder's own
            # What Python opens is not inheritable. This is the shell's, and whoever started vrun.
            if descriptor > 2 and os.get_inheritable(descriptor):
                os.close(descriptor)


def _import(modules: Sequence[str], folder: str) -> Refused | None:
    """Imports what vrun's --preload names. Returns why the template cannot fork ranks, or None."""
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
                    agent.send(_end_of(ready, ended[-1]))
                    continue
                job: Job = agent.recv()
                # vrun has no use for the pids any more: it has closed the ranks of an earlier attempt.
                while ended:
                    os.waitpid(ended.pop(), 0)
                if refused := unusable or _reason_not_to_fork():
                    agent.send(refused)
                    continue
            except (EOFError, OSError):  # vrun has closed the pipe, or has ended
                _end_all([*running.values(), *ended])
                return None
            try:
                descriptor, pid = _fork(mask)
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


def _end_all(pids: list[int]) -> None:
    """Kills the ranks that still run, and reaps all. In a container, nobody else might reap them."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)  # which a zombie ignores
        os.waitpid(pid, 0)


def _end_of(descriptor: int, pid: int) -> Ended:
    """Returns how a rank has ended. It stays a zombie, so that vrun may still signal its process group."""
    info = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOWAIT)
    os.close(descriptor)
    assert info is not None
    return Ended(pid, info.si_status if info.si_code == os.CLD_EXITED else -info.si_status)


def _reason_not_to_fork() -> Refused | None:
    """Returns why a fork of this process would not be as good as a new one, or None."""
    from vccl import _C

    threads = len(os.listdir("/proc/self/task")) - 1
    if threads:
        return Refused(f"a preloaded module has started a thread ({threads} run), which a fork would lose")
    if _C.environment_was_read():
        return Refused("a preloaded module has asked about cards, whose variables are read once")
    return None


def _fork(mask: set[int | signal.Signals]) -> tuple[int, int]:
    """Forks a rank in a session of its own. Returns its descriptor and its pid, and (-1, 0) in the rank."""
    read, write = os.pipe()
    template = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _end_with_parent(template)
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(write)
        return -1, 0
    os.close(write)
    # vrun may signal the rank's process group as soon as it knows the pid, so the group has to exist. The
    # read ends when the rank has closed its end.
    os.read(read, 1)
    os.close(read)
    try:
        return os.pidfd_open(pid), pid
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
