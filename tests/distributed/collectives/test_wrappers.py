"""TORCH_DISTRIBUTED_DEBUG=DETAIL: torch wraps the backend, compares the ranks, and passes everything on."""

import contextlib
import datetime
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import gradients
import pytest
import test_functional_collectives
import test_nn_functional
import test_objects
import torch
import torch.distributed as dist
from common import everywhere
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vccl._device_type import backend_name


@contextlib.contextmanager
def wrapped(rank, size, store, backend="vccl", **options) -> Iterator[dist.ProcessGroup]:
    """A default group as the environment variable would have it made."""
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, **options)
        backend = dist.group.WORLD._get_backend(torch.device("vdev"))
        assert type(backend).__name__ == "_ProcessGroupWrapper"
        assert type(backend.wrapped_pg).__name__ == "ProcessGroupVccl"
        yield dist.group.WORLD
        dist.destroy_process_group()
    finally:
        dist.set_debug_level(before)


def collectives(rank, size, store, device, backend):
    with wrapped(rank, size, store, backend) as group:
        for module in (test_nn_functional, test_functional_collectives):
            for name, case in module.CASES.items():
                gradients.check(case, rank, size, device, name)
        assert group._get_sequence_number_for_group() > 0
        assert group._get_backend(torch.device(device)).name() == backend_name()


@pytest.mark.ranks(3, group=False)
@everywhere
def test_collectives(ranks, device):
    collectives(ranks.rank, ranks.size, ranks.store, device, "vccl")


@pytest.mark.ranks(2, group=False)
def test_collectives_in_a_mixed_group(ranks):
    collectives(ranks.rank, ranks.size, ranks.store, "vdev", "cpu:gloo,vdev:vccl")


@pytest.mark.ranks(2, group=False)
@everywhere
def test_objects_and_messages(ranks, device):
    rank, size = ranks.rank, ranks.size
    with wrapped(rank, size, ranks.store):
        test_objects.collectives(rank, size)
        test_objects.point_to_point(rank, size, device=torch.device(device))
        x, received = torch.full((4,), float(rank), device=device), torch.empty(4, device=device)
        right, left = (rank + 1) % size, (rank - 1) % size
        operations = [dist.P2POp(dist.irecv, received, left), dist.P2POp(dist.isend, x, right)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert received.tolist() == [left] * 4
        several = [torch.full((2,), float(rank + i), device=device) for i in range(3)]
        with dist._coalescing_manager():
            for tensor in several:
                dist.all_reduce(tensor)
        assert [tensor[0].item() for tensor in several] == [sum(range(size)) + size * i for i in range(3)]


@pytest.mark.ranks(2, group=False)
@everywhere
def test_ddp(ranks, device):
    with wrapped(ranks.rank, ranks.size, ranks.store):
        torch.manual_seed(1)
        net = DistributedDataParallel(nn.Linear(3, 2).to(device))
        reference = nn.Linear(3, 2)
        reference.load_state_dict({name: value.cpu() for name, value in net.module.state_dict().items()})
        xs = [gradients.numbers(other, (4, 3), 0).float() for other in range(ranks.size)]
        net(xs[ranks.rank].to(device)).square().mean().backward()
        reference(torch.cat(xs)).square().mean().backward()
        for p, q in zip(net.module.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(p.grad.cpu(), q.grad)
        # Were it the last to hold the group, it would free it with the GIL held: torch's wrapper then joins
        # gloo's thread, which may wait for the GIL to let go of what it had kept of this thread.
        del net


@pytest.mark.ranks(3, group=False)
def test_groups(ranks):
    with wrapped(ranks.rank, ranks.size, ranks.store, device_id=torch.device("vdev", ranks.rank)) as group:
        made = [dist.new_group([0, 2]), dist.new_group([0, 2], backend="gloo")]
        if ranks.rank != 1:
            for child in made:
                x = torch.ones(2)
                dist.all_reduce(x, group=child)
                assert x.tolist() == [2, 2]
        child = dist.split_group(group, [[0, 1], [2]])
        x = torch.ones(2, device="vdev")
        dist.all_reduce(x, group=child)
        assert x.tolist() == [dist.get_world_size(child)] * 2
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=20))
        group._register_on_completion_hook(lambda info: None)
        group._wait_for_pending_works()


@pytest.mark.ranks(2, group=False)
@everywhere
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("collective", ["OpType=ALLREDUCE", "OpType=BROADCAST"]),
        ("shape", ["TensorShape=[4, 2]", "TensorShape=[3, 2]"]),
        ("dtype", ["TensorDtypes=Float", "TensorDtypes=Double"]),
    ],
)
def test_mismatch(ranks, device, what, told):
    rank = ranks.rank
    with wrapped(rank, ranks.size, ranks.store):
        x = torch.ones(4, 2, device=device)
        dist.all_reduce(x)
        with pytest.raises(RuntimeError) as caught:
            if what == "collective" and rank == 1:
                dist.broadcast(x, 0)
            elif what == "shape" and rank == 1:
                dist.all_reduce(x[:3].clone())
            elif what == "dtype" and rank == 1:
                dist.all_reduce(x.double())
            else:
                dist.all_reduce(x)
        # The wrapper found it before the backend was called: nothing is broken.
        dist.all_reduce(x)
    text = str(caught.value)
    assert re.search(rf"Rank {rank} is running collective: CollectiveFingerPrint\(SequenceNumber=\d+", text)
    assert [part for part in told if part not in text] == []


SCRIPT = """
import datetime, torch, torch.distributed as dist
dist.init_process_group("vccl", timeout=datetime.timedelta(seconds=1800))
assert type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__ == "_ProcessGroupWrapper"
x = torch.ones(3, device=f"vdev:{dist.get_rank()}")
dist.all_reduce(x)
assert x.tolist() == [2, 2, 2]
try:
    dist.all_reduce(x) if dist.get_rank() else dist.broadcast(x, 0)
except RuntimeError as error:
    assert "Detected mismatch between collectives on ranks" in str(error), error
else:
    raise AssertionError("nothing was raised")
dist.barrier()
dist.destroy_process_group()
# One argument: the pieces that print() makes of several mix with the other rank's.
print(f"rank {dist.get_debug_level().name} ended well")
"""


@pytest.mark.daily
def test_through_the_environment(tmp_path):
    script = pathlib.Path(tmp_path, "script.py")
    script.write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(script),
    ]
    environment = {**os.environ, "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("rank DETAIL ended well") == 2
