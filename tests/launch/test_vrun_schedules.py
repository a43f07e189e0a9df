"""vrun --schedule lets the ranks play an order that is drawn from a seed, and names it when they fail."""

import pytest

SUM = """
import torch, torch.distributed as dist
from vccl import _C
dist.init_process_group("vccl")
x = torch.full((4,), dist.get_rank() + 1.0, device=f"vdev:{os.environ['LOCAL_RANK']}")
for _ in range(3):
    dist.all_reduce(x)
assert x.tolist() == [12.0] * 4, x
assert _C._schedule_report()[0] > 0
assert ("VDEV_SCHEDULE_TURNS" in os.environ) == os.environ["VDEV_SCHEDULE"].endswith(",exact")
dist.destroy_process_group()
print("rank", os.environ["RANK"], "is right")
"""


@pytest.mark.parametrize("schedule", ["random:5", "pct:2:5,exact"])
def test_ranks_play_a_schedule(vrun, script, schedule):
    output = vrun("--cards", 2, "--schedule", schedule, script(SUM))
    assert output.count("is right") == 2


@pytest.mark.parametrize(
    "schedule", ["x:1", "random", "pct:0:1", "pct:17:1", f"random:{2**64}", "random:1,x"]
)
def test_a_schedule_that_is_none_starts_no_rank(vrun, script, schedule):
    output = vrun("--cards", 2, "--schedule", schedule, script("print('started')"), status=2)
    assert f"vrun: --schedule '{schedule}' is not valid: expected random:SEED or pct:DEPTH:SEED" in output
    assert "started" not in output and "To play them again" not in output


def test_a_failing_run_names_its_schedule(vrun, script):
    output = vrun("--cards", 2, "--schedule", "random:8", script("raise SystemExit(3)"), status=3)
    assert "vrun: orders were drawn. To play them again: --schedule random:8" in output
