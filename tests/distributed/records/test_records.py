"""Records of real ranks: they have what was called, and a replay makes the same calls."""

import json
import pathlib
import sys

import pytest
import torch
import torch.distributed as dist
from common import everywhere, sync
from torch.distributed.distributed_c10d import _coalescing_manager

import vccl
from vccl.replay import comparison, matching, read_job


def collectives(rank: int, size: int, device: str) -> None:
    """Every collective, on all ranks."""
    x = torch.arange(6.0, device=device)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    dist.all_reduce(x, op=dist._make_nccl_premul_sum(0.5), async_op=True).wait()
    dist.broadcast(x, 1)
    dist.reduce(x, 1, op=dist.ReduceOp.PRODUCT)
    dist.all_gather([torch.empty(6, device=device) for _ in range(size)], x)
    dist.all_gather([torch.empty(r + 1, device=device) for r in range(size)], x[: rank + 1].clone())
    dist.all_gather_into_tensor(torch.empty(6 * size, device=device), x)
    dist.gather(x, [torch.empty(6, device=device) for _ in range(size)] if rank == 0 else None, dst=0)
    dist.scatter(x, [x.clone() for _ in range(size)] if rank == 1 else None, src=1)
    dist.reduce_scatter(torch.empty(3, device=device), [torch.ones(3, device=device) for _ in range(size)])
    dist.reduce_scatter_tensor(torch.empty(3, device=device, dtype=torch.bfloat16),
                               torch.ones(3 * size, device=device, dtype=torch.bfloat16))  # fmt: skip
    rows = [[(a + b) % 3 for b in range(size)] for a in range(size)]  # from rank a to rank b
    dist.all_to_all_single(
        torch.empty(sum(row[rank] for row in rows), 2, device=device),
        torch.ones(sum(rows[rank]), 2, device=device),
        [row[rank] for row in rows], rows[rank],
    )  # fmt: skip
    dist.all_to_all_single(torch.empty(2 * size, device=device), torch.ones(2 * size, device=device))
    dist.all_to_all(
        [torch.empty(2, device=device) for _ in range(size)],
        [torch.ones(2, device=device) for _ in range(size)],
    )
    dist.all_reduce_coalesced([torch.ones(i, device=device) for i in range(12)])
    dist.barrier()


def batches(rank: int, size: int, device: str) -> None:
    """Batches of calls and messages, and single messages."""
    after, before = (rank + 1) % size, (rank - 1) % size
    dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((5,), float(rank), device=device), after),
            dist.P2POp(dist.irecv, torch.empty(5, device=device), before),
        ]
    )[0].wait()
    with _coalescing_manager(device=torch.device(device), async_ops=True) as handle:
        for elements in (3, 4):
            dist.all_reduce(torch.ones(elements, device=device))
    handle.wait()
    if rank == 0:
        dist.send(torch.ones(2, 2, device=device), 1, tag=7)
    elif rank == 1:
        dist.recv(torch.empty(2, 2, device=device), tag=7)  # from any rank


def record_all(rank: int, size: int, device: str, folder: str) -> None:
    pairs = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
    with vccl.record(folder, hashes=True):
        collectives(rank, size, device)
        batches(rank, size, device)
        dist.all_reduce(torch.ones(3, device=device), group=pairs[rank // 2])
        sync(device)
    dist.all_reduce(torch.ones(99, device=device))  # which nobody records
    with pytest.raises(RuntimeError, match="cannot take a record"):
        vccl.record(__file__).start()
    with (
        vccl.record(folder + "/again"),
        pytest.raises(RuntimeError, match="records its communication already"),
    ):
        vccl.record(folder).start()
    for pair in pairs:
        if pair is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(pair)


def replay(run, *arguments: object, **options) -> str:
    return run([sys.executable, "-m", "vccl.replay", *map(str, arguments)], **options)


@everywhere
def test_every_call_is_recorded_and_made_again(rank_pool, run, tmp_path, device):
    folder = tmp_path / "record"
    rank_pool.run(4, record_all, device, str(folder))
    job = read_job(folder)
    assert job.problems == [] and job.size == 4
    assert matching.differences(job) == [] and matching.has_hashes(job)
    assert matching.content_differences(job) == []
    operations = job.ranks[1].operations
    assert all(operation.state == "completed" for operation in operations)
    assert all(op.created <= op.started <= op.completed for op in operations)
    calls = {op.call.name: op.call for op in operations}
    assert calls["broadcast"].root == calls["scatter"].root == 1 and calls["gather"].root == 0
    assert calls["reduce"].reduction == "PRODUCT"
    assert [op.call.factor for op in operations if op.call.reduction == "PREMUL_SUM"] == [0.5]
    assert [op.call.is_async for op in operations[:2]] == [False, True]
    with_splits = next(op.call for op in operations if op.call.output_splits)
    assert with_splits.input_splits == (1, 2, 0, 1) and with_splits.output_splits == (1, 2, 0, 1)
    coalesced = [op.call for op in operations if op.call.name == "all_reduce_coalesced"]
    assert [len(call.inputs) for call in coalesced] == [12, 2]  # the manager makes one call of two
    assert [t.shape for t in coalesced[0].inputs] == [(i,) for i in range(12)]
    assert not any(op.call.cut for op in operations)
    received = operations[-2]
    assert (received.call.any_source, received.peer, received.call.tag) == (True, 0, 7)
    assert {op.call.card for op in operations if op.call.name == "all_reduce"} == {
        1 if device == "vdev" else -1
    }

    printed = replay(run, folder, "--keep", tmp_path / "replay")
    assert "The replay has made the calls of the record." in printed
    again = read_job(tmp_path / "replay")
    assert comparison.compare(job, again) == []
    if device == "vdev":
        replay(run, folder, "--device", "cpu", "--gaps", "sleep", "--repeat", 2, "--keep", tmp_path / "cpu")
        names = {op.call.card for op in read_job(tmp_path / "cpu").ranks[0].operations}
        assert names == {-1}


TRAINING = """
import torch, torch.distributed as dist, torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("vccl")
rank = dist.get_rank()
torch.manual_seed(0)

def net():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).to("vdev")

def train(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        model(torch.randn(4, 16, device="vdev")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

train(DistributedDataParallel(net(), device_ids=[rank]))
mesh = init_device_mesh("vdev", (2, 2), mesh_dim_names=("data", "tensor"))
model = parallelize_module(net(), mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
train(fully_shard(model, mesh=mesh["data"]))
stages = dist.new_group([0, 1])
if rank < 2:
    stage = PipelineStage(nn.Linear(16, 16).to("vdev"), rank, 2, torch.device("vdev", rank), group=stages)
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda out, target: (out - target).square().mean())
    if rank == 0:
        schedule.step(torch.randn(4, 16, device="vdev"))
    else:
        schedule.step(target=torch.randn(4, 16, device="vdev"))
torch.accelerator.synchronize()
dist.destroy_process_group()
"""


@pytest.mark.daily
def test_training_in_parallel_is_recorded_and_made_again(vrun, script, run, tmp_path):
    folder = tmp_path / "record"
    vrun("--record", folder, "--cards", 4, script(TRAINING))
    job = read_job(folder)
    assert job.problems == [] and matching.differences(job) == []
    names = {op.call.name for op in job.ranks[0].operations}
    assert {"all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "send"} <= names
    assert "The replay has made the calls of the record." in replay(run, folder, "--gaps", "compute")


def overlap(rank: int, size: int, folder: str) -> None:
    """The ranks call two groups in different order, each on a stream of its own."""
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    streams = [torch.Stream("vdev") for _ in groups]
    x = torch.ones(2, 4, device="vdev")
    for group in groups:
        dist.all_reduce(x[0], group=group)
    sync("vdev")
    with vccl.record(folder):
        for _ in range(3):
            for number in (0, 1) if rank == 0 else (1, 0):
                with streams[number]:
                    dist.all_reduce(x[number], group=groups[number])
        sync("vdev")
    for group in groups:
        dist.destroy_process_group(group)


def make_overlap(folder: pathlib.Path) -> None:
    """Writes other times into the record: each pair of calls overlaps, in the order of the rank's calls."""
    for rank in range(2):
        file = folder / f"rank-{rank}.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        groups = {line["call"]: line["group"] for line in lines if isinstance(line, dict) and "call" in line}
        first = groups[min(groups)]  # which this rank calls before the other one
        for number, line in enumerate(lines):
            if isinstance(line, list) and len(line) == 6:
                operation, call, sequence, created, _, _ = line
                began = sequence * 10_000_000
                start = began + (0 if groups[call] == first else 1000)
                lines[number] = [operation, call, sequence, min(created, start), start, began + 5_000_000]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_groups_that_overlap_in_different_order_are_played_again(rank_pool, run, tmp_path):
    folder = tmp_path / "record"
    rank_pool.run(2, overlap, str(folder))
    make_overlap(folder)
    assert "The replay has made the calls of the record." in replay(run, folder)
    assert "The replay has made the calls of the record." in replay(run, folder, "--device", "cpu")


HANG = """
import torch, torch.distributed as dist
dist.init_process_group("vccl")
x = torch.ones(4)
dist.all_reduce(x)
dist.all_gather_into_tensor(torch.ones(8), x)
if dist.get_rank() == 1:
    if sys.argv[1] == "kill":
        time.sleep(0.5)  # the record comes 20 ms late at most
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "mismatch":
        dist.broadcast(x, 0)
    else:
        time.sleep(1000)
dist.all_reduce(torch.ones(7))
"""


def failed_and_replayed(vrun, script, run, folder, how: str, status: int, second: str):
    """Returns the record of a job whose rank 1 missed the third collective, and what the replay prints."""
    vrun("--cards", 2, script(HANG), how, status=status, env={"VCCL_RECORD": str(folder)})
    job = read_job(folder)
    said = matching.differences(job)
    assert len(said) == 1 and "Collective 3" in said[0] and second in said[0]
    printed = replay(run, folder, "--timeout", 6, status=1)
    assert said[0] in printed and "The replay has failed" in printed
    return job, printed


def test_a_job_whose_calls_differed_fails_again(vrun, script, run, tmp_path):
    second = "rank 1 called broadcast(Float [4])"
    _, printed = failed_and_replayed(vrun, script, run, tmp_path / "record", "mismatch", 1, second)
    assert "all_reduce(float32" in printed and "broadcast" in printed


@pytest.mark.daily
def test_a_rank_that_was_killed_is_missing_again(vrun, script, run, tmp_path):
    second = "rank 1 did not call it"
    job, printed = failed_and_replayed(vrun, script, run, tmp_path / "record", "kill", 137, second)
    assert any("rank-1.jsonl has no last line" in problem for problem in job.problems)
    assert "rank 1" in printed and "has called 2 collectives of the group" in printed


def test_a_bad_directory_costs_a_line_and_no_more(run, script, tmp_path):
    job = script("import torch, torch.distributed as dist\n"
                 "dist.init_process_group('vccl', store=dist.HashStore(), rank=0, world_size=1)\n"
                 "dist.all_reduce(torch.ones(2))\nprint('done')\n"
                 "dist.destroy_process_group()\n")  # fmt: skip

    def recorded(value: object, status: int = 0) -> str:
        return run([sys.executable, job], env={"VCCL_RECORD": str(value)}, status=status)

    (tmp_path / "file").write_text("")
    printed = recorded(tmp_path / "file")
    assert "done" in printed and "Communication is not recorded (VCCL_RECORD): the directory" in printed
    for turn in range(2):
        printed = recorded(tmp_path / "record")
        assert "done" in printed
        assert ("rank-0.jsonl is there already" in printed) == (turn == 1)
    assert len(read_job(tmp_path / "record").ranks[0].operations) == 1
    assert "allowed are a directory" in recorded(",hash", status=1)
