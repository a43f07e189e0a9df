"""Network namespaces of Linux. They have no names, so each one ends with the last process that uses it.

A process that is killed cannot tidy up. A namespace that ``ip netns add`` makes would stay then, with its
interfaces. The kernel removes one without a name when no process and no descriptor holds it any more.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence

_CLONE_NEWNET = 0x40000000  # sched.h
_OWN = "/proc/thread-self/ns/net"
# Seconds for a command that changes interfaces. One takes milliseconds.
_SECONDS_FOR_COMMAND = 60.0
# Seconds for killed processes to vanish.
_SECONDS_TO_VANISH = 10.0


class Namespace:
    """A network namespace, which this process holds by a descriptor that its children do not get."""

    def __init__(self) -> None:
        """Makes a namespace that has the interface ``lo`` alone, which is down.

        Raises:
            PermissionError: this process may not make one.
            OSError: the kernel has no network namespaces, or the system has no more of something.
        """
        with _staying():
            _call("unshare", _CLONE_NEWNET)
            self._descriptor = os.open(_OWN, os.O_RDONLY)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Moves the calling thread into the namespace inside a ``with`` block.

        Processes and threads that are started there stay in it, and so do sockets that are opened there.
        """
        with _staying():
            _call("setns", self._descriptor, _CLONE_NEWNET)
            yield

    def run(
        self, command: Sequence[str], text: str = "", others: "Sequence[Namespace]" = ()
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in the namespace, and returns its status and what it printed.

        Args:
            command: the command line.
            text: goes to its standard input.
            others: namespaces that it may use, by the paths that ``path`` returns.

        Raises:
            subprocess.TimeoutExpired: it took too long, and was killed.
        """
        with self.entered():
            return subprocess.run(
                command,
                input=text,
                capture_output=True,
                text=True,
                timeout=_SECONDS_FOR_COMMAND,
                pass_fds=[other._descriptor for other in others],
                env={**os.environ, "LC_ALL": "C"},
            )

    @property
    def path(self) -> str:
        """The namespace as a file, for a command that was given it with ``others``."""
        return f"/proc/self/fd/{self._descriptor}"

    def end_processes(self) -> None:
        """Kills every process in the namespace but the calling one, and waits until they have ended."""
        _end_processes(os.fstat(self._descriptor).st_ino)

    def close(self) -> None:
        """Gives up the namespace, which ends when no process uses it."""
        os.close(self._descriptor)


def is_namespace_of(pid: int) -> bool:
    """Returns whether the calling thread is in the same namespace as a process."""
    return os.stat(_OWN).st_ino == os.stat(f"/proc/{pid}/ns/net").st_ino


def end_processes_around() -> None:
    """Kills all other processes in the namespace of the calling one."""
    _end_processes(os.stat(_OWN).st_ino)


def end_processes_after_this_one() -> None:
    """Lets another process kill those of this namespace once the calling one has ended, in whatever way.

    A process that is killed, or crashes, kills nobody. Call ``end_processes_around`` at an orderly end, which
    also ends that other process.
    """
    caller = os.getpid()
    if os.fork() != 0:
        return
    try:
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        end = os.pidfd_open(caller)
        # Nobody who waits for the end of what the caller prints has to wait for this process.
        os.closerange(0, end)
        os.closerange(end + 1, os.sysconf("SC_OPEN_MAX"))
        if os.getppid() == caller:
            select.select([end], [], [])
        end_processes_around()
    finally:
        os._exit(0)


def _end_processes(inode: int) -> None:
    until = time.monotonic() + _SECONDS_TO_VANISH
    # A process may have forked before it was killed.
    while (found := _processes_in(inode)) and time.monotonic() < until:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _processes_in(inode: int) -> list[int]:
    """Returns the processes whose network namespace has that number, without the calling one."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            # It has just ended, is a zombie, or belongs to somebody else.
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}/ns/net").st_ino == inode:
                    found.append(int(name))
    return found


@contextlib.contextmanager
def _staying() -> Iterator[None]:
    """Brings the calling thread back into its namespace at the end of a ``with`` block."""
    before = os.open(_OWN, os.O_RDONLY)
    try:
        yield
    finally:
        _call("setns", before, _CLONE_NEWNET)
        os.close(before)


def _call(name: str, *arguments: int) -> None:
    """Calls a function of libc that sets errno. Python has these two from version 3.12 on."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
