"""Under a schedule, a race of two streams gives all its results, and a program without races one."""

import pytest
import torch

from vccl import _C

pytestmark = pytest.mark.asynchronous
SEEDS = range(12)


def play(text: str, waits: bool) -> tuple[float, tuple[int, int, int]]:
    """Lets one stream read what another one writes, and returns what it has read, and the report."""
    torch.accelerator.synchronize()
    _C._start_schedule(text, "")
    try:
        writer, reader = torch.vdev.Stream(), torch.vdev.Stream()
        memory = torch.zeros(8, device="vdev")  # by a thread that is left from the schedule before
        for stream in (writer, reader):
            stream.wait_stream(torch.vdev.current_stream())
        with torch.vdev.stream(writer):
            memory.add_(1)
        if waits:
            reader.wait_stream(writer)
        with torch.vdev.stream(reader):
            read = memory.clone()
        torch.accelerator.synchronize()
        return read.tolist()[0], _C._schedule_report()
    finally:
        _C._stop_schedule()


@pytest.mark.parametrize("kind", ["random", "pct:2"])
def test_a_race_gives_both_results_and_its_repair_one(kind):
    assert {play(f"{kind}:{seed}", waits=False)[0] for seed in SEEDS} == {0.0, 1.0}
    assert {play(f"{kind}:{seed}", waits=True)[0] for seed in SEEDS} == {1.0}


def test_a_seed_gives_its_order_again():
    play("random:1", waits=False)  # the first use of the operators compiles and loads things
    for seed in SEEDS:
        first = play(f"random:{seed}", waits=False)
        play(f"pct:2:{seed}", waits=True)
        torch.vdev.Stream()  # the pool goes on, and its streams come in another order
        second = play(f"random:{seed}", waits=False)
        # If the system has held a thread up for so long that it lost the turn, the order may differ.
        if first[1][2] == second[1][2] == 0:
            assert first == second


# Each operator is called once: its first call, too, is a task that the schedule puts into an order.
SHORT_PROGRAM = """
import torch
from vccl import _C
memory = torch.zeros(8, device="vdev")
writer, reader = torch.vdev.Stream(), torch.vdev.Stream()
with torch.vdev.stream(writer):
    memory.add_(1)
reader.wait_stream(writer)
with torch.vdev.stream(reader):
    read = memory.clone()
torch.accelerator.synchronize()
assert read.tolist() == [1.0] * 8, read
print("report:", *_C._schedule_report())
"""


def report_of_program(run_python, **variables: str) -> tuple[int, int, int]:
    """Returns the choices of a program of its own process, their hash, and how often a turn was taken."""
    steps, trace, taken = run_python(SHORT_PROGRAM, **variables).stdout.split("report:")[1].split()
    return int(steps), int(trace), int(taken)


def test_the_variable_starts_a_schedule(run_python):
    assert report_of_program(run_python, VDEV_SCHEDULE="") == (0, 0, 0)
    first = report_of_program(run_python, VDEV_SCHEDULE="pct:3:7")
    second = report_of_program(run_python, VDEV_SCHEDULE="pct:3:7")
    assert first[0] > 0 and second[0] > 0
    if first[2] == second[2] == 0:
        assert first == second


@pytest.mark.parametrize("text", ["random", "pct:0:1", "random:x", "pct:3:1,twice"])
def test_a_wrong_value_is_refused_with_what_is_allowed(run_python, text):
    code = "import torch; torch.ones(2, device='vdev')"
    result = run_python(code, check=False, VDEV_SCHEDULE=text)
    assert result.returncode != 0
    assert f"VDEV_SCHEDULE='{text}' is not valid: expected random:SEED or pct:DEPTH:SEED" in result.stderr
