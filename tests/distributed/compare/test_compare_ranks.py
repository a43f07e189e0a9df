"""vccl.compare between ranks: where NaN began, and who has other weights, in ten models."""

import compare_models
import pytest
import torch
import torch.distributed as dist

from vccl import compare

pytestmark = pytest.mark.ranks(3)


def leaves_of(model):
    return [(name, module) for name, module in model.named_modules() if not list(module.children())]


def plant_nan(module):
    """The module's output gets NaN in one place, made by a square root."""

    def spoil(_module, _inputs, output):
        first = output[0] if isinstance(output, tuple) else output
        spoiled = first + torch.sqrt(first.new_zeros(()) - 1)
        return (spoiled, *output[1:]) if isinstance(output, tuple) else spoiled

    module.register_forward_hook(spoil)


def step(model, inputs):
    """One step of training in which all ranks share their gradients."""
    model.zero_grad()
    model(*inputs).square().mean().backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            with torch.no_grad():
                parameter -= 0.1 * parameter.grad


def made_on(ranks, name):
    model, inputs = compare_models.make(name)
    return model.eval().to(ranks.device), [x.to(ranks.device) for x in inputs]


@pytest.mark.parametrize("name", compare_models.MODELS)
def test_nan_on_one_rank(ranks, name):
    """The others get it from a collective, and read it in their second step."""
    model, inputs = made_on(ranks, name)
    path, module = leaves_of(model)[min(2, len(leaves_of(model)) - 1)]
    if ranks.rank == 1:
        plant_nan(module)
    with compare.track_nonfinite(model) as tracker:
        for _ in range(2):
            step(model, inputs)
    assert tracker.first.cause == ("made" if ranks.rank == 1 else "received"), tracker.first
    first = compare.across_ranks(tracker)
    assert first.rank == 1 and (first.finding.module, first.finding.operator) == (path, "aten::sqrt")
    assert "first on rank 1 (found on ranks 0, 1, 2)" in str(first)


@pytest.mark.parametrize("name", compare_models.MODELS)
def test_weights_of_ranks(ranks, name):
    model, inputs = made_on(ranks, name)
    with compare.track_nonfinite(model) as tracker:
        step(model, inputs)
    assert compare.across_ranks(tracker).rank is None
    assert compare.compare_ranks(model).same
    names = [name for name, _ in model.named_parameters()]
    planted = names[len(names) // 2]
    if ranks.rank == 2:
        with torch.no_grad():
            weight = model.get_parameter(planted).flatten()
            weight[-1] = torch.nextafter(weight[-1], weight[-1] + 1)
    report = compare.compare_ranks(model)
    assert not report.same and report.names == [planted] and report.name == planted
    assert report.parties == [[0, 1], [2]] and report.differing == [2]


def test_states_of_other_kinds(ranks):
    parameter = torch.nn.Parameter(torch.full((3,), 1.0, device=ranks.device))
    optimizer = torch.optim.Adam([parameter])
    parameter.grad = torch.full((3,), float(ranks.rank == 0), device=ranks.device)
    optimizer.step()
    report = compare.compare_ranks(optimizer.state_dict())
    assert report.name == "state.0.exp_avg" and report.differing == [0]
    report = compare.compare_ranks({"x": parameter, **({"only": parameter} if ranks.rank == 0 else {})})
    assert report.names == ["x", "only"]
    group = dist.new_group([1, 2])
    if ranks.rank > 0:
        assert compare.compare_ranks(optimizer.state_dict(), group).same


def test_a_wrong_operator_of_one_rank(ranks):
    """Every rank compares with the CPU, and they tell each other who has found something first."""
    model, inputs = made_on(ranks, "mlp")

    def function(model, x):
        y = model(x)
        return y * 1.5 if dist.get_rank() == 2 and x.device.type == "vdev" else y * 1.0

    report = compare.compare(function, (model, *inputs))
    first = compare.across_ranks(report)
    assert first.rank == 2 and first.finding.operator == "aten::mul.Tensor"
    assert [finding is None for finding in first.findings] == [True, True, False]
