"""torch's ways to parallelise a model, over several ranks, equal one process that trains on all batches."""

import copy
import os
import sys

import pytest
import torch
import torch.distributed as dist
from common import everywhere
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

BATCH, WIDTH, STEPS = 4, 8, 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(self.norm(x))))


def make_net() -> Net:
    torch.manual_seed(11)
    return Net().double()


def batch(step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64)


def reference(ranks: list[int], factor: float = 1.0) -> dict[str, torch.Tensor]:
    """The parameters after training on the batches of `ranks` at once, with gradients times `factor`."""
    net = make_net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01) if factor == 1 else sgd(net.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        net(torch.cat([batch(step, rank) for rank in ranks])).square().mean().backward()
        for p in net.parameters():
            p.grad *= factor
        optimizer.step()
    return net.state_dict()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def train(net: nn.Module, optimizer: torch.optim.Optimizer, rank: int, device: str) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        net(batch(step, rank).to(device)).square().mean().backward()
        optimizer.step()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()


def assert_parameters(named, expected: dict[str, torch.Tensor]) -> None:
    named = dict(named)
    assert set(named) == set(expected)
    for name, value in named.items():
        torch.testing.assert_close(
            whole(value), expected[name], rtol=1e-9, atol=1e-12, msg=lambda t, n=name: f"{n}: {t}"
        )


def with_fsdp2(rank, size, device, shape):
    names = ("replicate", "shard")[-len(shape) :]
    mesh = init_device_mesh(device, shape, mesh_dim_names=names)
    net = make_net().to(device)
    for layer in (net.up, net.down, net):
        fully_shard(layer, mesh=mesh)
    train(net, adam(net.parameters()), rank, device)
    assert_parameters(net.named_parameters(), reference(list(range(size))))


@everywhere
@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (4,), (2, 2)], ids=str)
def test_fsdp2(rank_pool, device, shape):
    rank_pool.run(int(torch.tensor(shape).prod()), with_fsdp2, device, shape)


def with_divide_factor(rank, size, device, shape):
    """A divisor that is neither 1 nor the number of ranks takes PREMUL_SUM."""
    mesh = init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    net = make_net().to(device)
    fully_shard(net, mesh=mesh)
    net.set_gradient_divide_factor(3.0)
    train(net, sgd(net.parameters()), rank, device)
    # A mean over all batches is the sum of the means, divided by the number of ranks.
    assert_parameters(net.named_parameters(), reference(list(range(size)), size / 3.0))


@everywhere
@pytest.mark.parametrize("shape", [(2,), (2, 2)], ids=str)
def test_fsdp2_with_another_divisor(rank_pool, device, shape):
    rank_pool.run(int(torch.tensor(shape).prod()), with_divide_factor, device, shape)


def with_mixed_precision(rank, size, device):
    """Parameters travel as bfloat16, gradients as float32: all ranks end up with the same bits."""
    net = make_net().float().to(device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(net, mesh=init_device_mesh(device, (size,)), mp_policy=policy)
    optimizer = adam(net.parameters())
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = net(batch(0, 0).float().to(device)).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    gathered = [None] * size
    dist.all_gather_object(gathered, losses)
    assert all(other == losses for other in gathered)


@pytest.mark.ranks(2)
@everywhere
def test_fsdp2_with_mixed_precision(ranks, device):
    with_mixed_precision(ranks.rank, ranks.size, device)


def with_fsdp1(rank, size, device, strategy):
    strategy = ShardingStrategy[strategy]
    mesh = init_device_mesh(device, (2, 2)) if strategy is ShardingStrategy.HYBRID_SHARD else None
    net = FullyShardedDataParallel(
        make_net().to(device),
        device_id=torch.device(device, rank) if device == "vdev" else torch.device("cpu"),
        sharding_strategy=strategy,
        device_mesh=mesh,
        use_orig_params=True,
    )
    train(net, adam(net.parameters()), rank, device)
    with FullyShardedDataParallel.summon_full_params(net):
        named = {name.removeprefix("_fsdp_wrapped_module."): p for name, p in net.named_parameters()}
        assert_parameters(named, reference(list(range(size))))


@everywhere
@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"])
def test_fsdp1(rank_pool, device, strategy):
    rank_pool.run(4 if strategy == "HYBRID_SHARD" else 2, with_fsdp1, device, strategy)


def with_tensor_parallel(rank, size, device, sequence):
    mesh = init_device_mesh(device, (size,))
    net = make_net().to(device)
    plan = {
        "up": ColwiseParallel(input_layouts=Shard(0) if sequence else Replicate()),
        "down": RowwiseParallel(),
    }
    if sequence:
        plan["norm"] = SequenceParallel(sequence_dim=0)
    parallelize_module(net, mesh, plan)
    # All ranks work on the same batch. The norm's parameters are plain tensors, unless they are sequence
    # parallel, and torch's fused loops over tensors do not take both kinds.
    train(net, torch.optim.Adam(net.parameters(), lr=0.01, foreach=False), 0, device)
    assert isinstance(net.up.weight, DTensor)
    assert_parameters(net.named_parameters(), reference([0]))


@pytest.mark.ranks(2, 4)
@everywhere
@pytest.mark.parametrize("sequence", [False, True], ids=["plain", "sequence"])
def test_tensor_parallel(ranks, device, sequence):
    with_tensor_parallel(ranks.rank, ranks.size, device, sequence)


@pytest.mark.ranks(4)
@everywhere
def test_tensor_parallel_and_fsdp2(ranks, device):
    """Two ranks share each layer, and two such pairs the batches."""
    mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("data", "model"))
    net = make_net().to(device)
    parallelize_module(net, mesh["model"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(net, mesh=mesh["data"])
    train(net, adam(net.parameters()), ranks.rank // 2, device)
    assert_parameters(net.named_parameters(), reference([0, 1]))


PLACEMENTS = [Replicate(), Shard(0), Shard(1), Partial()]


def redistributing(rank, size, device):
    mesh = init_device_mesh(device, (size,))
    values = torch.arange(6 * 10, dtype=torch.float64).reshape(6, 10)
    for source in PLACEMENTS[:3]:
        for target in PLACEMENTS[:3]:
            tensor = distribute_tensor(values.to(device), mesh, [source])
            moved = tensor.redistribute(mesh, [target])
            assert moved.placements == (target,)
            assert torch.equal(whole(moved), values), (source, target)
    for target in PLACEMENTS[:3]:
        parts = DTensor.from_local((values * (rank + 1)).to(device), mesh, [Partial()])
        assert torch.equal(whole(parts.redistribute(mesh, [target])), values * (size * (size + 1) // 2))
    x = distribute_tensor(values.to(device), mesh, [Shard(0)])
    y = distribute_tensor(values.t().contiguous().to(device), mesh, [Shard(1)])
    assert torch.equal(whole(x @ y), values @ values.t())
    assert whole(x.sum()).item() == values.sum().item()
    columns = distribute_tensor(values.to(device), mesh, [Shard(1)])  # where every rank has some
    assert whole(columns.max()).item() == values.max().item()


@pytest.mark.ranks(1, 2, 4)
@everywhere
def test_dtensor(ranks, device):
    """Sizes that the number of ranks does not divide, too."""
    redistributing(ranks.rank, ranks.size, device)


def with_zero(rank, size, device):
    net = DistributedDataParallel(make_net().to(device))
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    train(net, optimizer, rank, device)
    assert_parameters(net.module.named_parameters(), reference(list(range(size))))
    optimizer.consolidate_state_dict(to=0)
    if rank == 0:
        state = copy.deepcopy(optimizer.state_dict())
        assert len(state["state"]) == len(list(net.parameters()))


@pytest.mark.ranks(1, 2, 3)
@everywhere
def test_zero(ranks, device):
    with_zero(ranks.rank, ranks.size, device)


# As in PyTorch's own example of FSDP2: no rank calls set_device().
BOUND_SCRIPT = r"""
import datetime, os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

rank = int(os.environ["LOCAL_RANK"])
torch.manual_seed(0)
device = torch.device("vdev", rank)
dist.init_process_group("vccl", device_id=device, timeout=datetime.timedelta(seconds=60))
dist.barrier()
assert not torch.vdev.is_initialized()
mesh = init_device_mesh("vdev", (2,))
assert torch.vdev.is_initialized() and torch.vdev.current_device() == rank
net = nn.Linear(4, 4, device="vdev")
fully_shard(net, mesh=mesh)
net(torch.ones(2, 4, device="vdev")).sum().backward()
torch.optim.SGD(net.parameters(), lr=0.1).step()
assert {p.device for p in net.parameters()} == {device}
total = sum(p.to_local().sum() for p in net.parameters())
dist.all_reduce(total)
assert torch.isfinite(total).item()
dist.destroy_process_group()
os.write(1, f"rank {rank} done\n".encode())
"""


def test_a_mesh_chooses_the_card_of_a_bound_group(tmp_path, run):
    script = tmp_path / "script.py"
    script.write_text(BOUND_SCRIPT)
    path = os.pathsep.join(p for p in sys.path if p)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    output = run([*torchrun, script], env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, timeout=240)
    assert "rank 0 done" in output and "rank 1 done" in output


@pytest.mark.ranks(2, env={"LOCAL_RANK": "7"})
def test_a_mesh_leaves_the_card_that_was_chosen(ranks):
    card = 1 - ranks.rank
    torch.vdev.set_device(card)
    init_device_mesh("vdev", (ranks.size,))
    assert torch.vdev.current_device() == card
