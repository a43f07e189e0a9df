"""torch.compile over two ranks: collectives inside of compiled graphs, and around them."""

import newer_functional_names
import pytest
import torch
import torch.distributed as dist
from compiling import compiling
from disagreements import disagree, raises
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed import _functional_collectives as functional
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

RANKS = 2


@pytest.mark.daily
@pytest.mark.ranks(RANKS)
def test_collectives_inside_of_a_graph(ranks):
    def function(x):
        group = dist.group.WORLD
        summed = functional.all_reduce(x * 2, "sum", group)
        gathered = newer_functional_names.all_gather_single(summed + ranks.rank, 0, group)
        dist.all_reduce(x)
        scattered = newer_functional_names.reduce_scatter_single(gathered.sin(), "sum", 0, group)
        return scattered + x, summed.relu()

    with compiling():
        compiled = torch.compile(function, fullgraph=True)
        for _ in range(3):
            x = torch.randn(1000, device="vdev")
            expected = function(x.clone())
            torch.testing.assert_close(compiled(x), expected)


@pytest.mark.ranks(RANKS)
def test_compiled_code_does_not_read_what_a_failed_collective_left(ranks):
    def function(x):
        return x.sin() + 1

    with compiling():
        compiled = torch.compile(function, fullgraph=True)
        mine = torch.ones(3, device="vdev")
        expected = compiled(mine)
        y = torch.ones(3, device="vdev")
        _, _group = disagree(ranks.rank, y)
        raises(lambda: compiled(y))
        assert torch.equal(compiled(mine), expected)


WIDTH = 384  # a layer has 0.6 MB, which DDP puts into buckets of their own


class Net(nn.Module):
    """Three layers. Dynamo would not look into an nn.Sequential that DDP or FSDP calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.gelu(self.second(F.gelu(self.first(x)))))


def make_net():
    torch.manual_seed(3)
    return Net().to("vdev")


def losses(net, call, rank):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(rank)).to("vdev")
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = call(x).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return torch.tensor(found)


def make_ddp():
    return DistributedDataParallel(make_net(), bucket_cap_mb=1.2)


def make_fsdp():
    net = make_net()
    for layer in (net.first, net.second, net):
        fully_shard(layer)
    return net


@pytest.mark.ranks(RANKS)
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (make_ddp, {"optimize_ddp": "ddp_optimizer"}),
        (make_ddp, {"optimize_ddp": "python_reducer", "compiled_autograd": True}),
        (make_fsdp, {}),
    ],
    ids=["ddp", "ddp-python_reducer", "fsdp2"],
)
def test_training(ranks, make, options):
    net = make()
    expected = losses(net, net, ranks.rank)
    net = make()
    with compiling(), torch._dynamo.config.patch(options):
        found = losses(net, torch.compile(net), ranks.rank)
        assert counters["inductor"]["extern_calls"] > 1, counters
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
