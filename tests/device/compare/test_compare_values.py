"""vccl.compare finds where NaN and infinity begin, and writes and replays the arguments of operators."""

import pickle

import compare_models
import pytest
import torch
from torch import nn

from vccl import compare
from vccl.compare.cli import main


def run(model, *inputs):
    output = model(*inputs)
    output.square().mean().backward()
    return output


@pytest.mark.parametrize("device", ["cpu", "vdev"])
@pytest.mark.parametrize("name", compare_models.MODELS)
def test_nothing_in_a_sound_model(name, device):
    model, inputs = compare_models.make(name)
    model.to(device)
    with compare.track_nonfinite(model) as tracker:
        run(model, *(x.to(device) for x in inputs))
    assert tracker.first is None


class Planted(nn.Module):
    """The second of three layers divides by nothing, forward or backward."""

    def __init__(self, fault):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        self.middle = Middle(fault)

    def forward(self, x):
        return self.last(self.middle(self.first(x)))


class Middle(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def forward(self, x):
        return self.fault(x)


@pytest.mark.parametrize(
    "fault, operator, what, backward",
    [
        (lambda x: (x - x) / (x - x).detach(), "aten::div.Tensor", "NaN", False),
        (lambda x: x + torch.ones_like(x) / 0, "aten::div.Tensor", "infinity", False),
        (lambda x: torch.log(-x.abs() - 1), "aten::log", "NaN", False),
        (lambda x: x.mul(1e30).mul_(1e30), "aten::mul_.Tensor", "infinity", False),
        (lambda x: x * float("nan"), "aten::mul.Tensor", "NaN", False),
        (lambda x: torch.sqrt((x * 0).square()) + x, "aten::div.Tensor", "infinity", True),
        (lambda x: torch.softmax(x.masked_fill(x == x, float("-inf")), -1), "aten::_softmax", "NaN", False),
    ],
    ids=["0 by 0", "1 by 0", "log", "overflow", "times NaN", "backward", "all masked"],
)
def test_the_operator_that_makes_it(fault, operator, what, backward):
    torch.manual_seed(0)
    model = Planted(fault).to("vdev")
    with compare.track_nonfinite(model) as tracker:
        run(model, torch.randn(2, 3, device="vdev"))
    first = tracker.first
    assert (first.operator, first.what, first.module) == (operator, what, "middle"), first
    assert first.place.backward == backward and first.cause == "made"
    assert first.place.line.startswith(__file__)
    made_of = "infinity" if operator == "aten::_softmax" else "finite arguments"
    assert f"made {what} of {made_of}, in" in str(first)


def test_a_weight_that_holds_it():
    model, inputs = compare_models.make("mlp")
    with torch.no_grad():
        model[2].weight[0, 0] = float("inf")
    with (
        pytest.raises(FloatingPointError, match=r"read infinity from parameter 2\.weight"),
        compare.track_nonfinite(model, raise_error=True),
    ):
        model(*inputs)


def test_inputs_that_hold_it():
    with compare.track_nonfinite() as tracker:
        torch.ones(3, device="vdev") + torch.tensor([0.0, float("nan"), 1.0], device="vdev")
    assert tracker.first.cause == "read" and tracker.first.count == 1
    assert "an argument that nothing here made" in str(tracker.first)


def test_arguments_of_a_named_operator(tmp_path, capsys):
    """Strides, types and what is no tensor are as they were."""
    model, inputs = compare_models.make("transformer")
    model.eval()
    file = tmp_path / "norm.pt"
    with compare.dump_operator("native_layer_norm", file, model=model, module="layers.1.*", call=1):
        expected = model(*inputs)
    report = compare.replay(file, tolerance=compare.Tolerance(bits=True))
    assert report.difference is None and report.operator == "aten::native_layer_norm"
    kept = torch.load(file, weights_only=True)
    norm = nn.functional.layer_norm(
        kept["args"][0]["tensor"], [8], model.layers[1].norm2.weight, model.layers[1].norm2.bias
    )
    assert torch.equal(norm, expected)
    assert main(["replay", str(file)]) == 0 and "no difference" in capsys.readouterr().out


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.add(x.t()[1:], x.expand(4, 4).t()[1:], alpha=2),
        lambda x: torch.zeros_like(x, dtype=torch.float64, memory_format=torch.preserve_format),
        lambda x: torch.full((2,), 3.0, device=x.device),
        lambda x: x.clone().index_put_((torch.tensor([0], device=x.device),), x[1]),
        lambda x: torch.cat([x, x.mT]),
    ],
)
def test_any_arguments_can_be_replayed(call, tmp_path):
    x = torch.randn(4, 4, device="vdev")
    names = []

    class Names(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(function)
            return function(*args, **(kwargs or {}))

    with Names():
        call(x)
    name = [function.name() for function in names if not function.is_view][-1]
    with compare.dump_operator(name.removeprefix("aten::"), tmp_path / "call"):
        call(x)
    assert compare.replay(tmp_path / "call", tolerance=compare.Tolerance(bits=True)).difference is None


@pytest.mark.parametrize(
    ("operator", "call"),
    [
        ("native_dropout", lambda: nn.functional.dropout(torch.ones(99, device="vdev"))),
        ("rand", lambda: torch.rand(99, device="vdev")),
        ("bernoulli_.float", lambda: torch.empty(99, device="vdev").bernoulli_(0.3)),
    ],
)
def test_the_numbers_of_a_random_operator_are_not_compared(operator, call, tmp_path, capsys):
    with compare.dump_operator(operator, tmp_path / "call"):
        call()
    report = compare.replay(tmp_path / "call")
    assert report.random and report.difference is None
    assert main(["replay", str(tmp_path / "call")]) == 0
    assert "in the sizes of the results; the operator draws random numbers" in capsys.readouterr().out


def test_mistakes_are_named(tmp_path, capsys):
    missing = pytest.raises(
        LookupError, match=r"gelu was called 1 times in modules '\*', so .* no call 3: calls"
    )
    with missing, compare.dump_operator("gelu", tmp_path / "x", call=3):
        nn.functional.gelu(torch.ones(1))
    assert not (tmp_path / "x").exists()
    assert main(["replay", str(tmp_path / "x")]) == 2
    torch.save({"weights": torch.ones(1)}, tmp_path / "weights")
    assert main(["replay", str(tmp_path / "weights")]) == 2
    torch.save(
        {"format": "vccl.compare 1", "operator": "mine::op", "args": [], "kwargs": {}}, tmp_path / "mine"
    )
    assert main(["replay", str(tmp_path / "mine")]) == 2
    errors = capsys.readouterr().err
    assert "is not a dump that vccl.compare wrote" in errors and "there is no operator mine::op" in errors


def test_what_was_called_instead(tmp_path):
    """A composite operator is never seen, and calls count from 0."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def missed(operator, **options):
        with (
            pytest.raises(LookupError) as raised,
            compare.dump_operator(operator, tmp_path / "x", model=model, **options),
        ):
            model(inputs)
        return str(raised.value)

    inputs = torch.ones(2, 3)
    text = missed("linear")
    assert text.startswith("linear was not called in modules '*'. linear is a composite operator")
    assert text.endswith("Called were: aten::addmm, aten::relu")
    assert missed("aten::linear", module="1").endswith("Called were: aten::relu")
    assert "composite" not in missed("gelu") and "composite" not in missed("no_such_operator")
    assert missed("addmm", module="0", call=1) == (
        "addmm was called 1 times in modules '0', so there is no call 1:"
        " calls count from 0, and call=0 is the only one"
    )


@pytest.mark.parametrize("content", ["pickle", "text", "a whole recording"])
def test_files_that_are_no_dumps(content, tmp_path, capsys):
    file = tmp_path / "file"
    if content == "pickle":
        file.write_bytes(pickle.dumps(tmp_path))
    elif content == "text":
        file.write_text("text")
    else:
        compare.record(nn.Linear(2, 2), (torch.ones(1, 2),)).save(file)
    assert main(["replay", str(file)]) == 2
    errors = capsys.readouterr().err
    assert "is not a dump that vccl.compare wrote. dump_operator() and Report.dump() write" in errors
    assert "weights_only" not in errors


def test_a_captured_graph_is_not_watched(tmp_path):
    """The host cannot wait for a stream that captures, and the error names who wanted to."""
    x = torch.ones(3, device="vdev")
    for watch, tool in (
        (compare.track_nonfinite(), "track_nonfinite"),
        (compare.dump_operator("mul.Tensor", tmp_path / "x"), "dump_operator"),
    ):
        with (
            pytest.raises(RuntimeError, match=f"{tool} .* outside of the block of {tool}"),
            watch,
            torch.vdev.graph(torch.vdev.VDEVGraph()),
        ):
            x * 2
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        y = x * 2
    with compare.track_nonfinite() as tracker:
        graph.replay()
        y / 0
    assert tracker.first.operator == "aten::div.Tensor"
