"""What needs a terminal, or ends a run of pytest from outside."""

import os
import signal
import sys

import pytest
from processes import gone, read_when_there, wait_until
from terminal import Terminal

PATIENCE = 120  # seconds
FAILS = """
import pytest
@pytest.mark.ranks(2)
def test_it(ranks):
    x = 41 + ranks.rank
    assert x == 41
"""


def test_debugger_of_a_rank(tmp_path):
    (tmp_path / "test_inner.py").write_text(FAILS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rank-pdb", "1"]
    terminal = Terminal(command, dict(os.environ), tmp_path)
    try:
        terminal.read_until(lambda printed: b"(Pdb)" in printed)
        terminal.type(b"p x * 1000\n")
        terminal.read_until(lambda printed: b"42000" in printed)
        terminal.type(b"q\n")
        terminal.read_until(lambda printed: b"rank 1: failed" in printed)
        terminal.read_until(lambda printed: b"1 failed" in printed)
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
    pids = read_when_there([tmp_path / f"there{rank}" for rank in range(2)], child)
    os.kill(child.pid, how)
    child.output(PATIENCE)
    wait_until(lambda: all(map(gone, pids)))
    assert how != signal.SIGINT or "KeyboardInterrupt" in child.printed()
