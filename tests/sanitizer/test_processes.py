"""What a process does that the sanitizer watches: what it prints and writes, and how it ends."""

import json
import os
import re
import subprocess
import sys

import pytest

RACE = """\
import torch

side = torch.Stream("vdev")
x = torch.ones(3, device="vdev")
for _ in range(3):
    with torch.vdev.stream(side):
        x + 1
{end}
"""
RIGHT = RACE.replace("for _", "side.wait_stream(torch.vdev.current_stream())\nfor _")


@pytest.fixture
def run(tmp_path):
    def run(program, *launcher, **variables):
        script = tmp_path / "script.py"
        fields = {field: variables.pop(field, "") for field in ("end", "synchronize")}
        script.write_text(program.format(**fields))
        return subprocess.run(
            [sys.executable, *launcher, script],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=240,
            cwd=tmp_path,
        )

    return run


def test_a_race_is_printed_once_and_changes_the_status(run):
    ended = run(RACE, VDEV_SANITIZER="1")
    assert ended.returncode == 86, ended.stderr
    assert ended.stderr.count("read after write") == 1
    assert "script.py:4" in ended.stderr and "script.py:7" in ended.stderr
    assert "must wait for the default stream of vdev:0 after line 4" in ended.stderr


@pytest.mark.parametrize("value", ["", "0"])
def test_nothing_is_looked_for_unless_it_is_asked_for(run, value):
    ended = run(RACE, VDEV_SANITIZER=value)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_right_program_ends_as_always(run):
    assert run(RIGHT, VDEV_SANITIZER="1").returncode == 0


def test_the_status_of_a_program_that_fails_stays(run):
    assert run(RACE, VDEV_SANITIZER="1", end="raise SystemExit(3)").returncode == 3


def test_the_second_access_raises(run):
    ended = run(RACE, VDEV_SANITIZER="raise")
    assert ended.returncode == 1
    assert "line 7, in <module>" in ended.stderr and "vccl.sanitizer.reports.RaceError" in ended.stderr


CHILDREN = """\
import multiprocessing, sys
if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=work, args=(races,)) for races in (True, False)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    print([child.exitcode for child in children])
"""


def test_a_forked_child_that_raced_ends_with_the_status(run):
    body = RACE.replace("{end}", "").replace("\n", "\n    ")
    work = f"import torch\ndef work(races):\n    if not races:\n        return\n    {body}\n{CHILDREN}"
    ended = run(work, VDEV_SANITIZER="1")
    assert ended.returncode == 0 and ended.stdout == "[86, 0]\n", ended.stderr


def test_a_forked_child_does_not_end_with_its_parents_status(run):
    work = f"{RACE}\ndef work(races):\n    pass\n{CHILDREN}"
    ended = run(work, VDEV_SANITIZER="1")
    assert ended.returncode == 86 and ended.stdout == "[0, 0]\n", ended.stderr


def test_reports_are_written_as_json(run, tmp_path):
    run(RACE, VDEV_SANITIZER="1", VDEV_SANITIZER_LOG=str(tmp_path / "races"), RANK="3")
    (line,) = (tmp_path / "races.3").read_text().splitlines()
    report = json.loads(line)
    assert report["kind"] == "read after write"
    assert report["tensor"]["name"] == "x" and report["tensor"]["shape"] == [3]
    assert (report["first"]["line"], report["second"]["line"]) == (4, 7)
    assert set(report["first"]) == {"op", "stream", "rank", "file", "line"}
    assert report["second"]["rank"] == 3 and report["second"]["op"] == "aten::add"
    assert "wait_stream" in report["missing"]


@pytest.mark.parametrize(
    ("rule", "status"),
    [
        ("file:*script.py", 0),
        ("file:script.py", 0),
        ("file:cript.py", 86),
        ("op:aten::add", 0),
        ("op:aten::mm", 86),
    ],
)
def test_finds_can_be_suppressed(run, tmp_path, rule, status):
    rules = tmp_path / "rules"
    rules.write_text(f"# what is known\n\n{rule}\n")
    count = "import vccl.sanitizer; print(vccl.sanitizer.found().suppressed)"
    ended = run(RACE, VDEV_SANITIZER="1", VDEV_SANITIZER_SUPPRESSIONS=str(rules), end=count)
    assert ended.returncode == status, ended.stderr
    assert f"'{rule}': {3 if status == 0 else 0}" in ended.stdout


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"VDEV_SANITIZER": "yes"}, "'yes' is none of 0, 1, raise, uninit and useless"),
        ({"VDEV_SANITIZER": "1,loud"}, "'loud' is none of"),
        ({"VDEV_SANITIZER": "1", "VDEV_SANITIZER_LOG": "/nowhere/races"}, "there is no folder '/nowhere'"),
    ],
)
def test_a_wrong_value_says_what_is_allowed(run, variables, text):
    ended = run(RIGHT, **variables)
    assert ended.returncode != 0 and text in ended.stderr


def test_a_wrong_line_of_the_suppressions_is_named(run, tmp_path):
    rules = tmp_path / "rules"
    rules.write_text("everything\n")
    ended = run(RIGHT, VDEV_SANITIZER="1", VDEV_SANITIZER_SUPPRESSIONS=str(rules))
    assert f"{rules}:1: 'everything' is not valid" in ended.stderr


@pytest.mark.parametrize("options", [("--no-preload",), ()])
def test_ranks_of_vrun_end_with_the_status(run, options):
    launcher = ("-m", "vccl.launch.vrun", "--cards", "2", "--sanitize", *options)
    ended = run(RACE, *launcher)
    assert ended.returncode == 86, ended.stderr
    assert "read after write" in ended.stderr  # of the rank that has ended first; vrun ends the other one
    assert run(RIGHT, *launcher).returncode == 0


def test_pytest_fails_the_test_that_raced(tmp_path):
    (tmp_path / "test_them.py").write_text(
        "import pytest, torch\n"
        "def play(wait):\n"
        "    side, x = torch.Stream('vdev'), torch.ones(3, device='vdev')\n"
        "    if wait:\n"
        "        side.wait_stream(torch.vdev.current_stream())\n"
        "    with torch.vdev.stream(side):\n"
        "        x + 1\n"
        "@pytest.mark.parametrize('wait', [True, False])\n"
        "def test_alone(wait):\n"
        "    play(wait)\n"
        "@pytest.mark.ranks(2)\n"
        "@pytest.mark.parametrize('wait', [True, False])\n"
        "def test_on_ranks(ranks, wait):\n"
        "    play(wait)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--ranks-sanitize", "--ranks-device", "vdev", "test_them.py"],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
    )
    assert "2 failed, 2 passed" in ended.stdout, ended.stdout
    assert "FAILED test_them.py::test_alone[False]" in ended.stdout
    assert "FAILED test_them.py::test_on_ranks[False]" in ended.stdout
    assert "test_them.py:7" in ended.stdout


SHARING = """\
import torch
import torch.multiprocessing as mp

def read(queue, answers):
    x = queue.get()
    x.sum()
    {synchronize}
    answers.put("read")

if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    process = context.Process(target=read, args=(queue, answers))
    process.start()
    x = torch.ones(3, device="vdev")
    queue.put(x)
    answers.get()
    x.zero_()
    process.join()
    x.sum()
"""


@pytest.mark.parametrize("launch", ["", "blocking"])
def test_two_processes_share_memory(run, launch):
    racing = run(SHARING, VDEV_SANITIZER="1", VDEV_LAUNCH=launch, synchronize="")
    assert racing.returncode == 86, racing.stderr
    assert racing.stderr.count("vccl sanitizer") == 1, racing.stderr
    assert "script.py:6" in racing.stderr and "script.py:18" in racing.stderr
    assert re.search("come after line 6 of process [0-9]+: let process [0-9]+ synchronize", racing.stderr)
    synchronize = "torch.vdev.synchronize()"
    right = run(SHARING, VDEV_SANITIZER="1", VDEV_LAUNCH=launch, synchronize=synchronize)
    assert (right.returncode, right.stderr) == (0, "")
