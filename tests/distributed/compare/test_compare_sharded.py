"""vccl.compare with DTensors: models in tensor parallelism and in FSDP2, and where their ranks go wrong."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from compare_models import wrong_on_cards
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from vccl import compare

pytestmark = pytest.mark.ranks(2)


def plain_model():
    torch.manual_seed(0)
    layers = [
        nn.Linear(8, 16),
        nn.GELU(),
        nn.Linear(16, 8),
        nn.LayerNorm(8),
        nn.Dropout(0.1),
        nn.Linear(8, 8),
    ]
    return nn.Sequential(*layers)


def tensor_parallel(model, mesh):
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def sharded(model, mesh):
    fully_shard(model[2], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def mesh_of(device):
    return init_device_mesh(torch.device(device).type, (2,))


def plant_nan(module):
    module.register_forward_hook(
        lambda _module, _inputs, output: output + torch.sqrt(output.new_zeros(()) - 1)
    )


@pytest.mark.parametrize("shard", [tensor_parallel, sharded])
@pytest.mark.parametrize("fault", [False, True], ids=["sound", "NaN on rank 1"])
def test_where_nan_begins(ranks, shard, fault):
    model = shard(plain_model().to(ranks.device), mesh_of(ranks.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    if fault and ranks.rank == 1:
        plant_nan(model[1])
    with compare.track_nonfinite(model) as tracker:
        for _ in range(2):
            model(torch.ones(4, 8, device=ranks.device)).square().mean().backward()
            optimizer.step()
    first = compare.across_ranks(tracker)
    if not fault:
        assert first.rank is None, first
        return
    assert tracker.first.cause == ("made" if ranks.rank == 1 else "received"), tracker.first
    assert (first.rank, first.finding.module, first.finding.operator) == (1, "1", "aten::sqrt")


def test_a_weight_of_one_rank_that_holds_nan(ranks):
    model = tensor_parallel(plain_model().to(ranks.device), mesh_of(ranks.device))
    if ranks.rank == 1:
        with torch.no_grad():
            model[2].weight.to_local()[0, 0] = float("nan")
    with compare.track_nonfinite(model) as tracker:
        model(torch.ones(4, 8, device=ranks.device))
    first = compare.across_ranks(tracker)
    assert first.rank == 1 and "read NaN from parameter 2.weight" in str(first)


def test_tensors_that_are_sharded_within_the_block(ranks):
    """Their sizes are not known from earlier, and what collectives bring is still on its way."""
    mesh = mesh_of(ranks.device)
    with compare.track_nonfinite() as tracker:
        x = distribute_tensor(torch.ones(4, 6, device=ranks.device), mesh, [Shard(0)])
        product = x.sin() @ distribute_tensor(torch.ones(6, 2, device=ranks.device), mesh, [Replicate()])
        weights = nn.ParameterList([nn.Parameter(product.redistribute(mesh, [Replicate()]))])
        tracker.model = weights
        torch.log(weights[0] * -1)
    assert tracker.first.operator == "aten::log"


@pytest.mark.parametrize("shard", [tensor_parallel, sharded])
@pytest.mark.parametrize("fault", [False, True], ids=["sound", "wrong on rank 1"])
@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_the_card_against_the_cpu(ranks, shard, fault):
    """Rank 0 finds nothing wrong with its own operators, but takes part in the third run."""

    def step(model, x):
        output = shard(model, mesh_of(x.device))(x)
        output.square().mean().backward()
        return output

    with wrong_on_cards("aten::gelu") if fault and ranks.rank == 1 else contextlib.nullcontext():
        report = compare.compare(step, (plain_model(), torch.ones(4, 8)))
    first = compare.across_ranks(report)
    if not fault:
        assert report.same and report.differences.compared > 10 and not report.differences.unmatched, report
        assert not report.random
        return
    assert not report.same
    assert (report.culprit is not None) == (ranks.rank == 1)
    assert (first.rank, first.finding.module, first.finding.operator) == (1, "1", "aten::gelu")


def test_a_fault_that_reaches_no_other_rank(ranks):
    """Rank 0 finds no difference at all, and must not leave rank 1 alone with the collectives."""

    def function(x):
        dist.all_reduce(x.clone())
        return nn.functional.gelu(x)

    with wrong_on_cards("aten::gelu") if ranks.rank == 1 else contextlib.nullcontext():
        report = compare.compare(function, (torch.ones(3),))
    assert report.operator == ("aten::gelu" if ranks.rank == 1 else "")
    assert compare.across_ranks(report).rank == 1


def test_a_model_that_is_sharded_already(ranks):
    x = torch.ones(4, 8, device=ranks.device)
    model = tensor_parallel(plain_model().to(ranks.device).eval(), mesh_of(ranks.device))
    assert compare.compare(model, (x,), reference=compare.record(model, (x,))).same
    with pytest.raises(
        TypeError, match=r"0\.weight is sharded over a mesh of 'vdev'.* cannot be copied to cpu"
    ):
        compare.compare(model, (x,))
    with pytest.raises(TypeError, match="to a function that shards it"):
        compare.record(sharded(plain_model().to(ranks.device), mesh_of(ranks.device)), (x,))


def test_the_operators_of_one_rank_are_written_to_a_file(ranks, tmp_path):
    model = tensor_parallel(plain_model().to(ranks.device), mesh_of(ranks.device))
    with compare.dump_operator("addmm", tmp_path / "call", model=model):
        model(torch.ones(4, 8, device=ranks.device))
    report = compare.replay(tmp_path / "call")
    assert report.difference is None and "float32[8, 8]" in report.arguments  # half of the 16 columns
