"""The option --ranks-schedules plays a test in many orders, and tells the first in which it fails."""

import re
import sys

SOURCE = """
import os
import pytest, torch
import torch.distributed as dist
from vccl import _C

def note(name, what=""):
    with open(os.environ["NOTES"], "a") as file:
        file.write(f"{name} {what or os.environ['VDEV_SCHEDULE']}\\n")

@pytest.fixture
def fresh():
    return []

def test_of_one_process(fresh):
    assert not fresh  # each time anew
    fresh.append(1)
    note("one")
    writer, reader = torch.vdev.Stream(), torch.vdev.Stream()
    memory = torch.zeros(8, device="vdev")
    reader.wait_stream(torch.vdev.current_stream())
    writer.wait_stream(torch.vdev.current_stream())
    with torch.vdev.stream(writer):
        memory.add_(1)
    with torch.vdev.stream(reader):
        read = memory.clone()
    torch.accelerator.synchronize()
    note("taken", f"{_C._schedule_report()[2]}")
    assert read.tolist()[0] == 1

def test_that_is_right():
    note("right")
    assert torch.ones(4, device="vdev").sum().item() == 4

@pytest.mark.ranks(2)
def test_on_ranks(ranks):
    if ranks.rank == 0:
        note("ranks")
    x = torch.ones(4, device="vdev")
    for _ in range(3):
        dist.all_reduce(x)
    assert x.tolist() == [8.0] * 4
    assert _C._schedule_report()[0] > 0

@pytest.mark.ranks(2)
def test_fails_on_ranks(ranks):
    assert not os.environ["VDEV_SCHEDULE"].startswith("random:4")
"""


def notes_in(folder, name):
    lines = [line.split() for line in (folder / "notes").read_text().splitlines()]
    return [schedule for noted, schedule in lines if noted == name]


def test_the_first_schedule_that_fails_is_told(inner_pytest, run, tmp_path):
    env = {"NOTES": str(tmp_path / "notes")}
    ran = inner_pytest(SOURCE, "--ranks-schedules", "30", status=1, env=env)
    assert ran.outcomes["test_that_is_right"] == ran.outcomes["test_on_ranks"] == "passed"
    usual = ["pct:2:1", "random:2", "pct:3:3", "random:4"]
    assert notes_in(tmp_path, "right")[:4] == notes_in(tmp_path, "ranks")[:4] == usual
    assert len(notes_in(tmp_path, "right")) == len(notes_in(tmp_path, "ranks")) == 30
    assert "random:4 is the first that fails, after 3 that pass" in ran.told("test_fails_on_ranks")

    told = ran.told("test_of_one_process")
    played = notes_in(tmp_path, "one")
    assert 0 < len(played) < 30
    again = re.search(r"VDEV_SCHEDULE=(\S+) python -m pytest (\S+)", told)
    assert again[1] == played[-1] and again[2].endswith("::test_of_one_process")

    again = inner_pytest(SOURCE, "-k", "one_process", status=None, env={**env, "VDEV_SCHEDULE": played[-1]})
    # On a busy machine time decides, too: the failure says so, and each run of the test notes it.
    steady = "turns taken" not in told and notes_in(tmp_path, "taken")[-1] == "0"
    assert again.outcomes == {"test_of_one_process": "failed"} or not steady


def test_ranks_take_turns(inner_pytest, tmp_path):
    env = {"NOTES": str(tmp_path / "notes")}
    ran = inner_pytest(SOURCE, "--ranks-schedules", "3,exact", "-k", "test_on_ranks", env=env)
    assert ran.outcomes == {"test_on_ranks": "passed"}
    assert notes_in(tmp_path, "ranks") == ["pct:2:1,exact", "random:2,exact", "pct:3:3,exact"]


def test_a_wrong_number_is_refused(run, tmp_path):
    for text in ("0", "-3", "many", "3,quick"):
        output = run([sys.executable, "-m", "pytest", f"--ranks-schedules={text}", tmp_path], status=4)
        assert "is not a number from 1, or one with ',exact' behind it" in output
