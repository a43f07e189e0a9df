"""Graphs that hold operators."""

import copy

import pytest
import torch
from torch import nn

import vccl  # noqa: F401
from vccl import _C


def capture(function, *, warm_up: bool):
    """A graph of one call, and the call's result."""
    graph = torch.vdev.VDEVGraph()
    if warm_up:
        with torch.vdev.stream(torch.vdev.Stream()):
            function()
        torch.vdev.synchronize()
    else:
        _C._forget_calls()
    with torch.vdev.graph(graph):
        result = function()
    return graph, result


def chain(x):
    y = torch.nn.functional.gelu(x @ x.t()).mul_(2)
    y[0] = x[1, 0]
    values, indices = y.sort(dim=1)
    return torch.cat([values + 1.5, indices.to(torch.float32)]).sum(0, keepdim=True).expand(3, -1) * 2


@pytest.mark.parametrize("warm_up", [True, False])
def test_a_replay_computes_with_the_new_elements(warm_up):
    x = torch.zeros(4, 4, device="vdev")
    graph, result = capture(lambda: chain(x), warm_up=warm_up)
    for _ in range(3):
        fresh = torch.randn(4, 4)
        x.copy_(fresh)
        graph.replay()
        torch.testing.assert_close(result.cpu(), chain(fresh), rtol=0, atol=0)


@pytest.mark.parametrize("warm_up", [True, False])
def test_a_training_step(warm_up):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    nets = [net.to("vdev"), copy.deepcopy(net).to("vdev")]
    options = {"lr": 0.01, "capturable": True, "foreach": True}
    optimizers = [torch.optim.AdamW(each.parameters(), **options) for each in nets]
    x = torch.zeros(2, 1, 8, 8, device="vdev")
    target = torch.zeros(2, dtype=torch.int64, device="vdev")

    def step(net, optimizer):
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(net(x), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    # The optimizer makes its state, and the parameters their gradients, before the capture.
    side = torch.vdev.Stream()
    side.wait_stream(torch.vdev.current_stream())  # which fills the inputs and the parameters
    for net, optimizer in zip(nets, optimizers, strict=True):
        with torch.vdev.stream(side):
            step(net, optimizer)
    torch.vdev.synchronize()
    if not warm_up:
        _C._forget_calls()
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        captured_loss = step(nets[0], optimizers[0])
    for _ in range(3):
        x.copy_(torch.randn(2, 1, 8, 8))
        target.copy_(torch.randint(0, 5, (2,)))
        graph.replay()
        expected = step(nets[1], optimizers[1])
        assert captured_loss.item() == expected.item()
    for replayed, eager in zip(nets[0].state_dict().values(), nets[1].state_dict().values(), strict=True):
        assert torch.equal(replayed, eager)


def test_random_numbers_of_a_replay_are_those_of_eager_calls():
    x = torch.ones(100, device="vdev")

    def draw():
        return torch.cat([torch.rand_like(x), nn.functional.dropout(x, 0.3), torch.randn(5, device="vdev")])

    graph, result = capture(draw, warm_up=True)
    torch.vdev.manual_seed(3)
    replayed = []
    for _ in range(2):
        graph.replay()
        replayed.append(result.clone())
    torch.vdev.manual_seed(3)
    assert all(torch.equal(each, draw()) for each in replayed)
    assert not torch.equal(*replayed)


def test_make_graphed_callables():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to("vdev")
    eager = copy.deepcopy(net)
    sample = torch.randn(4, 6, device="vdev", requires_grad=True)
    graphed = torch.vdev.make_graphed_callables(net, (sample,))
    for _ in range(3):
        x = torch.randn(4, 6, device="vdev", requires_grad=True)
        y = x.detach().clone().requires_grad_()
        for module, given in ((graphed, x), (eager, y)):
            module.zero_grad()
            (module(given) ** 2).sum().backward()
        assert torch.equal(x.grad, y.grad)
        for ours, theirs in zip(graphed.parameters(), eager.parameters(), strict=True):
            assert torch.equal(ours.grad, theirs.grad)


def test_copies_of_a_card():
    x = torch.zeros(3, 4, device="vdev")

    def copies():
        y = torch.empty(4, 3, device="vdev")
        y.copy_(x.t())
        return y.to(torch.float64) + 1

    graph, result = capture(copies, warm_up=True)
    x.copy_(torch.arange(12.0).view(3, 4))
    graph.replay()
    assert torch.equal(result.cpu(), x.cpu().t().double() + 1)


@pytest.mark.asynchronous  # otherwise the copy is refused because it waits
def test_a_copy_to_a_card_outside_of_the_capture_is_refused():
    x, other = torch.zeros(3, device="vdev:0"), torch.zeros(3, device="vdev:1")
    with (
        pytest.raises(RuntimeError, match="uncaptured work in another stream"),
        torch.vdev.graph(torch.vdev.VDEVGraph()),
    ):
        other.copy_(x)


@pytest.mark.parametrize(
    "refused",
    [
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: x.copy_(torch.ones(3)),
        lambda x: torch.unique(x),
    ],
)
def test_what_depends_on_elements_is_refused(refused):
    x = torch.ones(3, device="vdev")
    with pytest.raises(RuntimeError, match="captur"), torch.vdev.graph(torch.vdev.VDEVGraph()):
        refused(x)
    assert (x + 1).tolist() == [2, 2, 2]


def test_an_error_of_a_kernel_is_raised_after_the_replay():
    table, index = torch.ones(4, 2, device="vdev"), torch.zeros(3, dtype=torch.int64, device="vdev")
    graph, result = capture(lambda: nn.functional.embedding(index, table), warm_up=True)
    index.fill_(9)
    graph.replay()
    with pytest.raises(IndexError, match=r"out of range.*aten::"):
        torch.vdev.synchronize()
    index.fill_(1)
    graph.replay()
    assert torch.equal(result.cpu(), torch.ones(3, 2))


def test_argument_errors_are_raised_in_the_capture():
    a, b = torch.ones(3, device="vdev"), torch.ones(4, device="vdev")
    with pytest.raises(RuntimeError, match="size of tensor"), torch.vdev.graph(torch.vdev.VDEVGraph()):
        a + b
    torch.vdev.synchronize()
