"""Compiled code in graphs of cards: each kernel that Inductor has generated is captured, and replayed."""

import pytest
import torch
from compiling import compiling
from torch import nn

# A graph that runs eagerly would be captured, too.
pytestmark = pytest.mark.filterwarnings("error:torch.compile. Inductor cannot compile")


@pytest.fixture(scope="module", autouse=True)
def cache():
    with compiling():
        yield


def captured(function):
    """Returns the graph of a function, and its result, whose memory each replay writes."""
    side = torch.vdev.Stream()
    side.wait_stream(torch.vdev.current_stream())
    with torch.vdev.stream(side):
        function()  # compiles, and makes what the first run makes
    torch.vdev.current_stream().wait_stream(side)
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        result = function()
    return graph, result


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8), nn.Softmax(-1)]
    return nn.Sequential(*layers).to("vdev")


def test_a_model_computes_with_each_replays_inputs():
    eager, x = model(), torch.zeros(6, 8, device="vdev")
    compiled = torch.compile(eager, fullgraph=True)
    with torch.no_grad():
        graph, result = captured(lambda: compiled(compiled(x) * 3))
        assert graph.pool() is not None
        before = torch.vdev.memory_allocated()
        for seed in range(3):
            inputs = torch.randn(6, 8, generator=torch.Generator().manual_seed(seed)).to("vdev")
            x.copy_(inputs)
            graph.replay()
            torch.testing.assert_close(result, eager(eager(inputs) * 3))
        # Nothing is allocated by a replay.
        del inputs
        assert torch.vdev.memory_allocated() == before


def test_a_step_of_training():
    trained, reference = model(), model()
    x, y = torch.randn(6, 8, device="vdev"), torch.rand(6, 8, device="vdev")
    loss_of = torch.compile(lambda a, b: (trained(a) - b).square().mean())
    for parameter in trained.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def step():
        for parameter in trained.parameters():
            parameter.grad.zero_()
        loss = loss_of(x, y)
        loss.backward()
        return loss

    graph, loss = captured(step)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.5) for each in (trained, reference)]
    for _ in range(3):
        graph.replay()
        optimizers[0].step()
        optimizers[1].zero_grad()
        expected = (reference(x) - y).square().mean()
        expected.backward()
        optimizers[1].step()
        torch.testing.assert_close(loss, expected)
    for one, other in zip(trained.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_random_numbers_differ_between_replays():
    x = torch.ones(1000, device="vdev")
    dropped = torch.compile(lambda x: nn.functional.dropout(x, 0.5) + 1, fullgraph=True)
    graph, result = captured(lambda: dropped(x))
    found = []
    for _ in range(2):
        graph.replay()
        found.append(result.clone())
        assert set(result.tolist()) == {1.0, 3.0}
    assert not found[0].equal(found[1])


def test_sizes_are_those_of_the_capture():
    function = torch.compile(lambda x: x * 2 + x.shape[0], fullgraph=True, dynamic=True)
    for size in (5, 7):
        x = torch.ones(size, device="vdev")
        graph, result = captured(lambda x=x: function(x))
        x.fill_(3)
        graph.replay()
        assert result.tolist() == [6.0 + size] * size


def test_numbers_on_the_cpu_are_those_of_the_capture():
    # A fused foreach reads its number in the kernel. For other kernels it is put on the card first.
    scale = torch.tensor(2.0)
    tensors = [torch.ones(3, device="vdev"), torch.ones(5, device="vdev")]
    for scaled in (lambda: torch._foreach_mul(tensors, scale), lambda: [x * scale for x in tensors]):
        scale.fill_(2.0)
        graph, results = captured(torch.compile(scaled, fullgraph=True))
        scale.fill_(4.0)
        graph.replay()
        assert [result.tolist() for result in results] == [[2.0] * 3, [2.0] * 5]


def test_what_is_freed_while_a_graph_is_captured_is_used_again():
    x = torch.ones(1 << 18, device="vdev")  # 1 MiB
    function = torch.compile(lambda x: (x + 1).relu())

    def chain():
        result = x
        for _ in range(16):
            result = function(result)
        return result

    graph, result = captured(chain)
    before = torch.vdev.memory_reserved()
    graph.replay()
    assert result[0].item() == 17 and result[-1].item() == 17
    assert torch.vdev.memory_reserved() == before
    assert torch.vdev.memory_allocated() < 8 << 20


def test_a_failure_spoils_what_the_kernel_would_have_written():
    x = torch.ones(4, device="vdev")
    index = torch.zeros(4, dtype=torch.int64, device="vdev")
    function = torch.compile(lambda x: x * 2, fullgraph=True)
    graph, result = captured(lambda: function(x.index_select(0, index)))
    index.fill_(9)
    graph.replay()
    with pytest.raises(IndexError, match="index out of range"):
        result.tolist()
    torch.vdev.clear_errors()
    index.fill_(3)
    graph.replay()
    assert result.tolist() == [2.0] * 4
