"""VCCL_CHECK: NaN and infinity in collectives, and operations that nobody has waited for."""

import sys

import pytest

SCRIPT = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("vccl")
rank, size = dist.get_rank(), dist.get_world_size()
{body}
dist.destroy_process_group()
"""


@pytest.fixture
def ranks(start, tmp_path):
    """ranks(body, check) returns what two ranks that run `body` print."""

    def ranks(body, check, **env):
        script = tmp_path / "ranks.py"
        script.write_text(SCRIPT.format(body=body))
        command = [sys.executable, "-m", "vccl.launch.vrun", "--cards", "2", script]
        return start(command, env={"VCCL_CHECK": check, **env}).output(300)

    return ranks


CAUGHT = """
def caught(call):
    try:
        call()
        torch.accelerator.synchronize(rank)
    except Exception as error:
        print(f"rank {rank} {type(error).__name__}: {error}", flush=True)
"""


@pytest.mark.parametrize("device", ["cpu", "vdev"])
def test_the_first_nan_that_enters(ranks, device):
    body = f"""{CAUGHT}
x = torch.ones(300, dtype=torch.bfloat16, device="cpu" if "{device}" == "cpu" else f"vdev:{{rank}}")
dist.all_reduce(x)
torch.accelerator.synchronize(rank)
# A rank that fails the group also ends what another rank has not returned from.
store = dist.distributed_c10d._get_default_store()
store.set(f"ready {{rank}}", "")
store.wait([f"ready {{other}}" for other in range(size)])
if rank == 1:
    x[[17, 40]] = float("nan")
caught(lambda: dist.all_reduce(x))
"""
    output = ranks(body, "nan")
    said = (
        "rank 1 of group default_pg: element 17 of 300 of the input of all_reduce(bfloat16, 300 elements, "
        "SUM) is NaN or infinite (VCCL_CHECK=nan)"
    )
    for rank in range(2):
        lines = [line for line in output.splitlines() if line.startswith(f"rank {rank} ")]
        assert len(lines) == 1 and said in lines[0], output


def test_what_a_collective_makes_infinite(ranks):
    body = f"""{CAUGHT}
x = torch.full((4,), 60000.0, dtype=torch.float16)
caught(lambda: dist.all_reduce(x))
"""
    assert "of the output of all_reduce(float16, 4 elements, SUM) is NaN or infinite" in ranks(
        body, "nan:outputs"
    )
    assert "NaN or infinite" not in ranks(body, "nan")


def test_a_batch_names_the_call(ranks):
    body = f"""{CAUGHT}
xs = [torch.ones(4), torch.full((4,), float("inf"))]
def batch():
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
caught(batch)
"""
    assert "element 0 of 4 of the input of call 2 of 2 in a batch, of all_reduce" in ranks(body, "nan")


def test_sound_numbers_and_integers_pass(ranks):
    body = """
for dtype in (torch.float32, torch.float16, torch.int64, torch.complex64, torch.bool):
    x = torch.ones(5, dtype=dtype)
    outs = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(outs, x)
    dist.broadcast(x, 0)
    if dtype != torch.bool:
        dist.all_reduce(x)
print("done", flush=True)
"""
    output = ranks(body, "all")
    assert output.count("done") == 2 and "VCCL_CHECK" not in output, output


def test_an_operation_that_nobody_has_waited_for(ranks):
    body = """
def forgets(x):
    dist.all_reduce(x, async_op=True)

for device in ("cpu", f"vdev:{rank}"):
    x = torch.ones(4, device=device)
    forgets(x)
    dist.all_reduce(x, async_op=True).wait()
    future = dist.all_reduce(x, async_op=True).get_future()
    future.wait()
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    dist.all_reduce(x)
torch.accelerator.synchronize(rank)
"""
    output = ranks(body, "leak")
    for rank in range(2):
        said = f"rank {rank} of group default_pg: nobody has waited for its all_reduce (number"
        lines = [line for line in output.splitlines() if said in line]
        assert len(lines) == 2, output
        for line in lines:
            assert "It was called in forgets" in line and "ranks.py:7)" in line


def test_training_leaks_nothing(ranks):
    body = """
from torch.distributed.fsdp import fully_shard
device = f"vdev:{rank}"
torch.accelerator.set_device_index(rank)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).to(device))
fsdp = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).to(device)
fully_shard(fsdp)
for _ in range(2):
    for model in (ddp, fsdp):
        model(torch.ones(2, 8, device=device)).sum().backward()
torch.accelerator.synchronize()
print("done", flush=True)
"""
    output = ranks(body, "all")
    assert output.count("done") == 2 and "VCCL_CHECK" not in output, output


def test_the_variable_of_nccl_in_pose(start, tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(
        """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
x = torch.full((3,), float("inf"), device="cuda")
try:
    dist.all_reduce(x)
    torch.cuda.synchronize()
except ValueError as error:
    print(error, flush=True)
"""
    )
    command = [sys.executable, "-m", "vccl.launch.vrun", "--as-cuda", "--cards", "2", script]
    output = start(command, env={"TORCH_NCCL_NAN_CHECK": "yes"}).output(300)
    assert "element 0 of 3 of the input of all_reduce(float32, 3 elements, SUM) is NaN or infinite" in output
