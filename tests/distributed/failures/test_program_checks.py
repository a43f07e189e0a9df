"""VCCL_CHECK: numbers, results, the order of groups, and operations that nobody has waited for."""

import re
import sys

import pytest
from torch_build import without_cuda

SCRIPT = """
{before}
import os, sys, torch, torch.distributed as dist
dist.init_process_group("vccl")
rank, size = dist.get_rank(), dist.get_world_size()
{body}
dist.destroy_process_group()
"""


@pytest.fixture
def ranks(start, tmp_path):
    """ranks(body, check) returns what two ranks that run `body` print."""

    def ranks(body, check, *arguments, cards=2, before="", **env):
        script = tmp_path / "ranks.py"
        script.write_text(SCRIPT.format(body=body, before=before))
        command = [sys.executable, "-m", "vccl.launch.vrun", "--cards", str(cards), *arguments, script]
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


# A rank that fails the group also ends what another rank has not returned from.
MET = """
store = dist.distributed_c10d._get_default_store()
store.set(f"ready {rank}", "")
store.wait([f"ready {other}" for other in range(size)])
"""


@pytest.mark.parametrize("device", ["cpu", "vdev"])
def test_the_first_nan_that_enters(ranks, device):
    body = f"""{CAUGHT}
x = torch.ones(300, dtype=torch.bfloat16, device="cpu" if "{device}" == "cpu" else f"vdev:{{rank}}")
dist.all_reduce(x)
torch.accelerator.synchronize(rank)
{MET}if rank == 1:
    x[[17, 40]] = float("nan")
caught(lambda: dist.all_reduce(x))
"""
    output = ranks(body, "nan")
    said = (
        "rank 1 refuses all_reduce(bfloat16, 300 elements, SUM) (operation 2 of group default_pg): element "
        "17 of 300 of the input is NaN or infinite (VCCL_CHECK=nan)"
    )
    for rank in range(2):
        lines = [line for line in output.splitlines() if line.startswith(f"rank {rank} ")]
        assert len(lines) == 1 and said in lines[0], output


@pytest.mark.parametrize("hosts", [(), ("--hosts", "2")], ids=["one_host", "two_hosts"])
def test_every_rank_of_a_host_says_what_it_has(ranks, hosts):
    body = f"""{CAUGHT}
x = torch.ones(5)
x[rank] = float("inf") if rank != 1 else 1.0
caught(lambda: dist.all_reduce(x))
"""
    output = ranks(body, "nan", *hosts, cards=2 if hosts else 3)
    size = 4 if hosts else 3
    reasons = [f"element {n} of 5 of the input is NaN or infinite (VCCL_CHECK=nan)" for n in range(size)]
    one_host = f"(operation 1 of group default_pg): {reasons[0]}; rank 2: {reasons[2]}"
    for rank in range(size):
        lines = [line for line in output.splitlines() if line.startswith(f"rank {rank} ValueError")]
        assert len(lines) == 1, output
        if hosts:
            assert any(reason in lines[0] for reason in reasons), output
        else:
            assert lines[0].endswith(one_host), output


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
    assert "element 0 of 4 of the input of call 2 of 2 in a batch is NaN or infinite" in ranks(body, "nan")


@pytest.mark.parametrize("device", ["cpu", "vdev"])
def test_nan_that_is_sent(ranks, device):
    body = f"""{CAUGHT}
device = "cpu" if "{device}" == "cpu" else f"vdev:{{rank}}"
torch.accelerator.set_device_index(rank)
sound, x = torch.ones(6, device=device), torch.zeros(4, 2, device=device).t()
dist.send(sound, 1) if rank == 0 else dist.recv(sound, 0)
torch.accelerator.synchronize()
{MET}
if rank == 0:
    x[1, 2] = float("nan")
    caught(lambda: dist.send(x, 1))
else:
    caught(lambda: dist.recv(x, 0))
"""
    output = ranks(body, "nan")
    said = "rank 0 of group default_pg: element 6 of 8 of the tensor of send to rank 1 is NaN or infinite"
    for rank in range(2):
        lines = [line for line in output.splitlines() if line.startswith(f"rank {rank} ")]
        assert len(lines) == 1 and said in lines[0], output


def assert_passed(output, ranks):
    """Every rank has come to its end, and no check has said anything."""
    assert output.count("done") == ranks and "VCCL_CHECK" not in output, output


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
    assert_passed(output, 2)


def test_a_result_that_something_else_writes_to(ranks):
    body = f"""{CAUGHT}
import threading
x = torch.zeros(1 << 16)
over = threading.Event()

def write():
    while not over.is_set():
        x.add_(1)

def broadcast():
    while True:  # until the writer has met a broadcast
        dist.broadcast(x, 0)

threads = [threading.Thread(target=write)] if rank == 1 else []
for thread in threads:
    thread.start()
caught(broadcast)
over.set()
for thread in threads:
    thread.join()
"""
    output = ranks(body, "content")
    said = (
        "the ranks of group default_pg differ in the output of broadcast(float32, 65536 elements, root 0) "
        "(VCCL_CHECK=content): element "
    )
    for rank in range(2):
        lines = [line for line in output.splitlines() if line.startswith(f"rank {rank} ")]
        assert len(lines) == 1 and said in lines[0] and "Something has written to" in lines[0], output


def test_models_that_differ_between_ranks(ranks):
    """A model of which one rank has another state, which DDP does not make equal."""
    body = f"""{CAUGHT}
torch.manual_seed(0)
torch.accelerator.set_device_index(rank)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to(f"vdev:{{rank}}")
make = lambda: torch.nn.parallel.DistributedDataParallel(net, init_sync=False)
caught(make)
if rank == 1:
    with torch.no_grad():
        net[0].bias[2] = 7
caught(make)
print("over", flush=True)
"""
    output = ranks(body, "content")
    said = (
        "DDP was given models that differ between ranks (VCCL_CHECK=content): 0.bias on rank 1 is not what "
        "rank 0 has"
    )
    for rank in range(2):
        lines = [line for line in output.splitlines() if line.startswith(f"rank {rank} ")]
        assert len(lines) == 1 and f"ValueError: {said}" in lines[0], output
    assert output.count("over") == 2 and "VCCL_CHECK" not in ranks(body, "leak")


INVERTED = f"""{CAUGHT}
torch.accelerator.set_device_index(rank)
other = dist.new_group(list(range(size)), group_desc="other")
x, y = (torch.ones(n, device=f"vdev:{{rank}}") for n in (4, 5))
dist.all_reduce(x)
dist.all_reduce(y, group=other)
torch.accelerator.synchronize(rank)

def first():
    return dist.all_reduce(x, async_op=True)

def second():
    return dist.all_reduce(y, group=other, async_op=True)

def both():
    works = [first(), second()] if rank == 0 else [second(), first()]
    for work in works:
        work.wait()
caught(both)
"""


@pytest.mark.parametrize("hosts", [(), ("--hosts", "2")], ids=["one_host", "two_hosts"])
def test_groups_in_another_order(ranks, hosts):
    output = ranks(INVERTED, "order", *hosts, cards=1 if hosts else 2)
    for rank in range(2):
        lines = [line for line in output.splitlines() if line.startswith(f"rank {rank} ")]
        assert len(lines) == 1, output
        assert "at different places among the collectives of other groups (VCCL_CHECK=order)" in lines[0]
        # One of the two collectives fails first.
        one = [
            "Rank 1 called all_reduce(float32 [5]), collective 2 of group other, in second (ranks.py:",
            "Rank 0 called all_reduce(float32 [4]), collective 2 of group default_pg, in first (ranks.py:",
        ]
        assert any(text in lines[0] for text in one), lines
        assert "called the latter first, in " in lines[0]
    assert "VCCL_CHECK" not in ranks(INVERTED, "leak", *hosts, cards=1 if hosts else 2)


OVERLAPPING = f"""{CAUGHT}
torch.accelerator.set_device_index(rank)
left, right = (dist.new_group(members, group_desc=name) for name, members in GROUPS)
x = torch.ones(4, device=f"vdev:{{rank}}")

def call(*groups):
    mine = [group for group in groups if dist.get_rank(group) >= 0]
    for work in [dist.all_reduce(x, group=group, async_op=True) for group in mine]:
        work.wait()
    torch.accelerator.synchronize(rank)

call(left, right)  # the ranks of a group meet in its first call
in_order = [right, left] if rank == 1 else [left, right]
"""


def test_groups_that_overlap_in_another_order(ranks):
    """No flag line has what both groups count: the recorders tell at the end."""
    groups = 'GROUPS = [("left", [0, 1, 2]), ("right", [0, 1, 3])]'
    output = ranks(groups + OVERLAPPING + "call(*in_order)", "order", cards=4)
    lines = [line for line in output.splitlines() if "VCCL_CHECK=order" in line]
    assert lines, output
    told = (
        r"has found calls of several groups that wait for each other\. On GPUs this may deadlock: .* "
        r"Rank (\d) called all_reduce\(float32 \[4\]\), collective \d+ of group (left|right), in \S+ "
        r"\(ranks\.py:\d+\), before .*, collective \d+ of group (left|right), in \S+ \(ranks\.py:\d+\)\. "
        r"Rank (\d) called the latter first, in \S+ \(ranks\.py:\d+\), and then the former, in "
    )
    found = re.search(told, lines[0])
    assert found and set(found.groups()) == {"0", "1", "left", "right"}, output
    # A loop learns of it while it runs.
    output = ranks(groups + OVERLAPPING + "while True: call(*in_order)", "order", cards=4)
    assert re.search(told, output), output


def test_a_circle_of_four_groups(ranks):
    """No two ranks have two groups in common. Ranks 1 and 2 call them in another order than the others."""
    body = """
torch.accelerator.set_device_index(rank)
mesh = dist.device_mesh.init_device_mesh("vdev", (2, 2), mesh_dim_names=("dp", "tp"))
x = torch.ones(4, device=f"vdev:{rank}")

def call(*names):
    for work in [dist.all_reduce(x, group=mesh[name].get_group(), async_op=True) for name in names]:
        work.wait()
    torch.accelerator.synchronize(rank)

call("dp", "tp")
call(*(("tp", "dp") if rank in EXCHANGED else ("dp", "tp")))
"""
    output = ranks("EXCHANGED = [1, 2]" + body, "order", cards=4)
    steps = set(re.findall(r"Rank (\d) called all_reduce", output))
    assert steps == {"0", "1", "2", "3"} and "VCCL_CHECK=order" in output, output
    assert "VCCL_CHECK" not in ranks("EXCHANGED = [1]" + body, "order", cards=4)


def test_groups_in_the_same_order(ranks):
    """Groups that contain each other or overlap, messages, batches, CPU tensors, groups that come and go."""
    body = """
torch.accelerator.set_device_index(rank)
device = f"vdev:{rank}"
same = dist.new_group(list(range(size)))
pair = dist.new_group([0, 1])
rest = dist.new_group([1, 2])
xs = [torch.ones(6, device=device) for _ in range(8)]
for step in range(3):
    works = [dist.all_reduce(xs[0], async_op=True), dist.all_reduce(xs[1], group=same, async_op=True)]
    if rank < 2:
        works.append(dist.broadcast(xs[2], 0, group=pair, async_op=True))
        # The ranks of a group may call other groups' collectives of the CPU in any order.
        if rank == 0:
            dist.all_reduce(torch.ones(2), group=pair)
    if rank == 1:
        dist.all_reduce(torch.ones(2), group=pair)
    if rank > 0:
        works.append(dist.all_reduce(xs[3], group=rest, async_op=True))
    if rank < 2:
        ops = [dist.P2POp(dist.isend, xs[4], 1 - rank), dist.P2POp(dist.irecv, xs[5], 1 - rank)]
        works.extend(dist.batch_isend_irecv(ops))
    with dist._coalescing_manager(device=torch.device(device)):
        for x in xs[6:]:
            dist.all_reduce(x)
    if rank == 0:  # another rank may coalesce what this one calls singly
        for x in xs[6:]:
            dist.all_reduce(x, group=same)
    else:
        with dist._coalescing_manager(same, torch.device(device)):
            for x in xs[6:]:
                dist.all_reduce(x, group=same)
    for work in works:
        work.wait()
    short = dist.new_group(list(range(size)))
    dist.all_reduce(xs[7], group=short)
    dist.destroy_process_group(short)
torch.accelerator.synchronize()
print("done", flush=True)
"""
    output = ranks(body, "order,content", cards=3)
    assert_passed(output, 3)


def test_a_group_that_has_failed_is_not_compared(ranks):
    """Rank 0 aborts a group, and rank 1 does not know of it."""
    body = f"""
torch.accelerator.set_device_index(rank)
x = torch.ones(3, device=f"vdev:{{rank}}")
aborted, other = dist.new_group([0, 1]), dist.new_group([0, 1])
dist.all_reduce(x, group=aborted)
torch.accelerator.synchronize()
{MET}
if rank == 0:
    try:
        aborted._get_backend(x.device).abort()
        dist.all_reduce(x, group=aborted)
    except Exception:
        pass
for group in (other, dist.group.WORLD):
    dist.all_reduce(x, group=group)
torch.accelerator.synchronize()
print("done", flush=True)
"""
    output = ranks(body, "order")
    assert_passed(output, 2)


def test_parallel_training_is_in_order(ranks):
    """A pipeline of two stages, each with DDP, and then FSDP with tensor parallel layers."""
    body = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
torch.manual_seed(0)
torch.accelerator.set_device_index(rank)
device = torch.device(f"vdev:{rank}")
mesh = init_device_mesh("vdev", (2, 2), mesh_dim_names=("pp", "dp"))
stage_module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)).to(device)
ddp = torch.nn.parallel.DistributedDataParallel(stage_module, process_group=mesh["dp"].get_group())
stage = PipelineStage(ddp, mesh["pp"].get_local_rank(), 2, device, group=mesh["pp"].get_group())
schedule = Schedule1F1B(stage, 4, loss_fn=torch.nn.functional.mse_loss)
for _ in range(2):
    if mesh["pp"].get_local_rank() == 0:
        schedule.step(torch.ones(8, 8, device=device))
    else:
        schedule.step(target=torch.ones(8, 8, device=device))
mesh = init_device_mesh("vdev", (2, 2), mesh_dim_names=("dp", "tp"))
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)).to(device)
parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(net, mesh=mesh["dp"])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    net(torch.ones(2, 8, device=device)).sum().backward()
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    total = torch.ones(1, device=device)
    dist.all_reduce(total)
torch.accelerator.synchronize()
print("done", flush=True)
"""
    output = ranks(body, "order,content,leak", cards=4)
    assert_passed(output, 4)


def test_ranks_that_check_different_things(ranks):
    script = "import os\nos.environ['VCCL_CHECK'] = ('content', 'order')[int(os.environ['RANK'])]\n"
    body = f"""{CAUGHT}
caught(lambda: dist.all_reduce(torch.ones(3)))
"""
    output = ranks(body, "leak", before=script)
    assert output.count("have asked for different checks before all_reduce(float32, 3 elements, SUM)") == 2


@pytest.mark.torch("<2.15", "torch itself asks each handle whether it is over, right after the call")
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
            assert "It was called in forgets" in line and "ranks.py:8)" in line


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
    assert_passed(output, 2)


@without_cuda  # in whose place cards cannot stand
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
    said = "refuses all_reduce(float32, 3 elements, SUM) (operation 1 of group default_pg): element 0 of 3 "
    assert said in output
