"""vrun at a terminal: Ctrl-C, prefixes of lines, and what it says when ranks are up."""

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import gone, wait_until
from terminal import Terminal

from vccl.launch import announcement


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """terminal("--cards", 2, script, ...) starts vrun at a terminal."""
    opened: list[Terminal] = []

    def start(*arguments: object, env: dict[str, str] | None = None) -> Terminal:
        line = [sys.executable, "-m", "vccl.launch.vrun", *map(str, arguments)]
        variables = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
        opened.append(Terminal(line, {**variables, "TERM": "xterm", **(env or {})}, tmp_path))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


STUBBORN = """
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "3600"])
name = "pids" + os.environ["RANK"]
open(name + ".part", "w").write(f"{os.getpid()} {os.getppid()} {child.pid}")
os.rename(name + ".part", name)
time.sleep(3600)
"""


@pytest.mark.parametrize(
    ("options", "times"),
    [([], 1), (["--no-preload"], 1), (["--shutdown-timeout", "100000"], 2), (["--hosts", 2], 1)],
    ids=["once", "no_preload", "twice", "hosts"],
)
def test_ctrl_c_ends_ranks_that_ignore_it(terminal, script, tmp_path, options, times):
    ranks = 1 if "--hosts" in options else 2
    shell = terminal(*options, "--cards", ranks, script(STUBBORN), env={"TMPDIR": str(tmp_path)})
    files = [tmp_path / "pids0", tmp_path / "pids1"]
    wait_until(lambda: all(file.exists() for file in files))
    shell.type(b"\x03")
    if times == 2:
        shell.read_until(lambda printed: printed.count(b"closing signal SIGINT") == 2)
        shell.type(b"\x03")
    printed = shell.end()
    assert shell.status == 130, printed
    # torchrun says so when it has waited for 30 seconds.
    assert "forcefully exiting" not in printed
    pids = [int(pid) for file in files for pid in file.read_text().split()]
    wait_until(lambda: all(map(gone, pids)))
    assert list(tmp_path.glob("vrun_*")) == list(tmp_path.glob("torchelastic_*")) == []


COUNT = """
rank = int(os.environ["RANK"])
for number in range(200): print(f"line {number} of {rank}")
print("error", rank, file=sys.stderr)
print(sys.stdout.isatty(), end="")
if rank == 1: os.kill(os.getpid(), signal.SIGKILL)
"""


def numbered(printed: str, prefix: str) -> list[str]:
    return [line.removeprefix(prefix) for line in printed.splitlines() if line.startswith(prefix)]


def test_lines_have_their_rank_in_front_at_a_terminal(terminal, script):
    shell = terminal("--cards", 2, script(COUNT), env={"NO_COLOR": "1"})
    printed = shell.end()
    assert shell.status == 137, printed
    for rank in range(2):
        lines = numbered(printed, f"[rank {rank}] ")
        assert lines == [*(f"line {n} of {rank}" for n in range(200)), f"error {rank}", "False"]
    up = [line for line in printed.splitlines() if "ranks are up after" in line]
    assert len(up) == 1 and up[0].startswith("vrun: 2 ranks are up after ")


@pytest.mark.parametrize(
    ("host", "pids", "text"),
    [
        (None, [7], "1 rank is up after 0.00 s (pid 7)"),
        (None, [7, 8, 9], "3 ranks are up after 0.00 s (pids 7 to 9)"),
        (1, [7, 9], "host1: 2 ranks are up after 0.00 s (pids 7, 9)"),
    ],
)
def test_what_is_said_when_ranks_are_up(capsys, host, pids, text):
    announcement.Announcement(argparse.Namespace(verbose=True, host=host), None)(pids)
    assert re.sub(r"\d+\.\d\d s", "0.00 s", capsys.readouterr().err) == f"vrun: {text}\n"


def test_one_rank_has_the_terminal_itself(terminal, script):
    # In one piece, because vrun writes to the terminal too.
    path = script("os.write(1, f'alone {sys.stdout.isatty()} {sys.stderr.isatty()}\\n'.encode())")
    shell = terminal("--cards", 1, path)
    assert "alone True True\n" in shell.end()


def test_options_say_whether_lines_have_prefixes(terminal, vrun, script, tmp_path):
    # In one piece, because the ranks and vrun write to the terminal at the same time.
    path = script("os.write(1, f'terminal {sys.stdout.isatty()}\\n'.encode())")
    shell = terminal("--no-prefix", "--cards", 2, path)
    printed = shell.end()
    assert printed.count("terminal True") == 2 and "[rank" not in printed
    printed = vrun("--prefix", "--verbose", "--cards", 2, path)
    assert "[rank 0] terminal False\n" in printed and "[rank 1] terminal False\n" in printed
    assert "vrun: 2 ranks are up after" in printed
    printed = vrun("--prefix", "--cards", 2, "--tee", "1:1", "--log-dir", tmp_path / "logs", path)
    assert "[rank 0] terminal False\n" in printed and "]:terminal False\n" in printed
    assert "[rank 1]" not in printed and "ranks are up" not in printed


def test_a_prompt_is_shown_while_other_ranks_print(terminal, script):
    path = script(
        "if os.environ['RANK'] == '0': print('read', input('a number: '))\n"
        "else:\n"
        "    while not os.path.exists('answered'): print('working'); time.sleep(0.05)\n"
    )
    shell = terminal("--cards", 2, path, env={"NO_COLOR": "1"})
    shell.read_until(lambda printed: printed.count(b"[rank 0] a number: ") >= 3)
    assert b"[rank 1] working\r\n" in shell.printed
    (path.parent / "answered").touch()
    shell.type(b"17\n")
    assert "read 17\n" in shell.end()


def test_what_a_rank_leaves_running_does_not_keep_vrun(vrun, script, tmp_path):
    path = script(
        "child = subprocess.Popen(['sleep', '3600'], start_new_session=True)\n"
        "open('left' + os.environ['RANK'], 'w').write(str(child.pid))\nprint('done', end='')"
    )
    try:
        assert vrun("--prefix", "--cards", 2, path).count("done\n") == 2
    finally:
        for file in tmp_path.glob("left*"):
            os.kill(int(file.read_text()), signal.SIGKILL)
