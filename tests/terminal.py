"""Programs at a terminal of their own."""

import os
import pty
import time
from collections.abc import Callable
from pathlib import Path


class Terminal:
    """A program that runs in the foreground of a terminal of its own."""

    def __init__(self, line: list[str], env: dict[str, str], cwd: Path) -> None:
        pid, self.descriptor = pty.fork()
        if pid == 0:
            os.chdir(cwd)
            os.execve(line[0], line, env)
        self.pid = pid
        self.status: int | None = None
        self.printed = b""

    def read_until(self, what: Callable[[bytes], bool]) -> bytes:
        """Reads until what was printed is as expected. Fails the test if the program ends before."""
        while not what(self.printed):
            assert self.read(), self.printed
        return self.printed

    def read(self) -> bool:
        """Reads once. Returns False when the program and all that has its terminal has ended."""
        os.set_blocking(self.descriptor, False)
        until = time.monotonic() + 300
        while time.monotonic() < until:
            try:
                part = os.read(self.descriptor, 1 << 16)
                self.printed += part
                return part != b""
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:  # the terminal's other side is closed
                return False
        raise AssertionError(self.printed)

    def type(self, text: bytes) -> None:
        os.write(self.descriptor, text)

    def end(self) -> str:
        """Returns all that was printed, and sets ``status``."""
        while self.read():
            pass
        until = time.monotonic() + 300
        while (found := os.waitpid(self.pid, os.WNOHANG)) == (0, 0):
            assert time.monotonic() < until, self.printed
            time.sleep(0.01)
        self.status = os.waitstatus_to_exitcode(found[1])
        return self.printed.decode(errors="replace").replace("\r\n", "\n")

    def close(self) -> None:
        from vccl.launch.hosts import kill_tree

        if self.status is None:
            kill_tree(self.pid)
            os.waitpid(self.pid, 0)
        os.close(self.descriptor)
