"""What needs a terminal, or ends a run of pytest from outside."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PATIENCE = 120  # seconds
FAILS = """
import pytest
@pytest.mark.ranks(2)
def test_it(ranks):
    x = 41 + ranks.rank
    assert x == 41
"""


class Terminal:
    """pytest at a terminal of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.pid, self._descriptor = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execv(
                sys.executable, [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
            )
        self.text = ""

    def read_until(self, word: str) -> None:
        """Fails the test if the word does not come."""
        until = time.monotonic() + PATIENCE
        while word not in self.text:
            assert time.monotonic() < until, self.text
            if select.select([self._descriptor], [], [], 1)[0]:
                self.text += os.read(self._descriptor, 4096).decode(errors="replace")

    def type(self, line: str) -> None:
        os.write(self._descriptor, f"{line}\n".encode())

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._descriptor)


def test_debugger_of_a_rank(tmp_path):
    (tmp_path / "test_inner.py").write_text(FAILS)
    terminal = Terminal(tmp_path, "--rank-pdb", "1")
    try:
        terminal.read_until("(Pdb)")
        terminal.type("p x * 1000")
        terminal.read_until("42000")
        terminal.type("q")
        terminal.read_until("rank 1: failed")
        terminal.read_until("1 failed")
    finally:
        terminal.close()


HANGS = """
import os, time
import pytest
@pytest.mark.ranks(2)
def test_it(ranks):
    with open(f"pid{ranks.rank}", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"pid{ranks.rank}", f"there{ranks.rank}")
    time.sleep(3600)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_ranks_end_with_pytest(tmp_path, start, how):
    """However pytest ends."""
    (tmp_path / "test_inner.py").write_text(HANGS)
    child = start([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"])
    until = time.monotonic() + PATIENCE
    there = [tmp_path / f"there{rank}" for rank in range(2)]
    while not all(path.exists() for path in there):
        assert time.monotonic() < until and child.poll() is None, child.printed()
        time.sleep(0.05)
    os.kill(child.pid, how)
    try:
        child.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        pytest.fail(child.printed())
    pids = [path.read_text() for path in there]
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < until + PATIENCE, child.printed()
        time.sleep(0.05)
    assert how != signal.SIGINT or "KeyboardInterrupt" in child.printed()


def _runs(pid: str) -> bool:
    """Whether the process has not ended. In a container, the system may leave a zombie for long."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
