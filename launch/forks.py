"""Forks that end with their parent, and how they ended."""

import contextlib
import ctypes
import dataclasses
import os
import signal

from .parent_death import signal_at_death_of_parent

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
# A process that forks ranks leaves them to the process that it serves. Schedulers send SIGTERM to every
# process of a job. Ranks that then save their state need their parent until they have ended.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclasses.dataclass(frozen=True)
class Started:
    """The message of a process that forks ranks when it has forked a rank."""

    pid: int


@dataclasses.dataclass(frozen=True)
class Ended:
    """The message of that process when a fork has ended."""

    pid: int
    status: int  # as subprocess.Popen.returncode: -n if signal n ended it


def end_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent, of that pid, ends in whatever way."""
    signal_at_death_of_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before the call
        os._exit(1)


def close_inherited() -> None:
    """Closes what a new process would not inherit from torchrun either: all but the standard streams."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the folder's own
            # What Python opens is not inheritable. This is the shell's, and whoever started vrun.
            if descriptor > 2 and os.get_inheritable(descriptor):
                os.close(descriptor)


def adopt_orphans() -> None:
    """Makes this process the parent of the processes that its children leave behind, to find and end them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """Returns the processes that the main thread of this process has started, or has adopted."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(map(int, file.read().split()))


def threads_besides_this_one() -> int:
    """Returns how many other threads this process has. A fork would lose them."""
    return len(os.listdir("/proc/self/task")) - 1


def fork(mask: set[int | signal.Signals]) -> tuple[int, int]:
    """Forks this process, into a session of its own that ends with this process.

    Args:
        mask: the signal mask of the fork.

    Returns:
        The fork's pidfd and its pid, and (-1, 0) in the fork.

    Raises:
        OSError: the system has no more processes or descriptors.
    """
    read, write = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        end_with_parent(parent)
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(write)
        return -1, 0
    os.close(write)
    # The caller may signal the fork's process group as soon as it knows the pid, so the group has to exist.
    # The read ends when the fork has closed its end.
    os.read(read, 1)
    os.close(read)
    try:
        return os.pidfd_open(pid), pid
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def status_of(descriptor: int) -> int:
    """Returns how a fork has ended, as subprocess.Popen.returncode: -n if signal n ended it.

    The fork stays a zombie, so that its process group may still be signalled. Closes the pidfd.
    """
    info = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOWAIT)
    os.close(descriptor)
    assert info is not None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def end_all(pids: list[int]) -> None:
    """Kills the forks that still run, and reaps all. In a container, nobody else might reap them."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)  # which a zombie ignores
        os.waitpid(pid, 0)
