"""vccl.compare of one process: it finds planted faults in ten models, and nothing in ten sound ones."""

import sys

import compare_models
import pytest
import torch
from compare_models import wrong_on_cards
from torch import nn

from vccl import compare
from vccl.compare.cli import main

# For each model an operator that is made wrong on the card, and the module and pass that call it first.
FAULTS = {
    "mlp": ("aten::gelu", "1", False),
    "conv net": ("aten::max_pool2d_with_indices", "", False),
    "transformer": ("aten::native_layer_norm", "layers.0.norm1", False),
    "lstm": ("aten::addmm", "last", False),
    "gru": ("aten::sigmoid_", "rnn", False),
    "attention": ("aten::_softmax", "", False),
    "embedding bag": ("aten::tanh_backward", "", True),
    "autoencoder": ("aten::silu_backward", "decoder.1", True),
    "residual block": ("aten::native_group_norm", "norms.1", False),
    "mixture of experts": ("aten::index_add", "", False),
}


@pytest.mark.parametrize("name", compare_models.MODELS)
def test_a_sound_model(name):
    model, inputs = compare_models.make(name)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    report = compare.compare(model, inputs)
    assert report.same, report
    assert report.differences.compared > 5 and not report.random
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
@pytest.mark.parametrize("name", compare_models.MODELS)
def test_a_wrong_operator(name, tmp_path, capsys):
    model, inputs = compare_models.make(name)
    operator, module, backward = FAULTS[name]
    with wrong_on_cards(operator):
        report = compare.compare(model, inputs)
        assert (report.operator, report.module, report.backward) == (operator, module, backward), report
        assert report.culprit is not None and report.culprit.difference.relative == pytest.approx(
            0.01, rel=1e-3
        )
        assert ("compare_models.py" in report.line) or "torch/nn/modules" in report.line
        report.dump(tmp_path / "call.pt")
        assert main(["replay", str(tmp_path / "call.pt")]) == 1
    assert main(["replay", str(tmp_path / "call.pt"), "--bits"]) == 0
    assert f"{operator}(" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_memory_that_an_operator_has_not_written_is_not_compared():
    model, inputs = compare_models.make("embedding bag")
    with wrong_on_cards("aten::_embedding_bag", lambda output: output[3].fill_(77)):
        assert compare.compare(model, inputs).same


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_dropout_is_not_listed_operator_by_operator():
    model, inputs = compare_models.make("transformer")
    with wrong_on_cards("aten::native_layer_norm"):
        report = compare.compare(model, inputs)
    assert report.differences.dropouts == 8 and not report.differences.unmatched
    lines = [line for line in str(report).splitlines() if line.startswith("Not compared")]
    assert lines == ["Not compared: dropout in 8 calls of modules, as it has other operators there"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("whole", [True, False], ids=["the model", "a module in it"])
def test_compiled_modules(whole):
    """They are compared uncompiled, and are compiled as before when they are called next."""
    frames = []

    def backend(graph, example_inputs):
        frames.append(graph)
        return graph.forward

    def compiled(module):
        return torch.compile(module, backend=backend, fullgraph=True)

    class Wrong(nn.Module):
        def forward(self, x):
            return x * 2 if x.device.type == "cpu" else x * 3

    model = nn.Sequential(nn.Linear(3, 3), Wrong() if whole else compiled(Wrong()))
    report = compare.compare(compiled(model) if whole else model, (torch.ones(2, 3),))
    assert report.module == "1" and report.differences.result.name == "output 0", report
    assert report.operator == "aten::mul.Tensor" and not frames
    compiled(Wrong())(torch.ones(3))  # torch notes code that it does not compile
    assert len(frames) == 1


def hooks_of(model):
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]


def test_nothing_is_left_behind_by_an_exception(tmp_path):
    model, inputs = compare_models.make("mlp")
    before = hooks_of(model)

    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop

    for watch in (compare.track_nonfinite(model), compare.dump_operator("gelu", tmp_path / "x", model=model)):
        handle = model[2].register_forward_hook(stop)
        with pytest.raises(Stop), watch:
            model(*inputs)
        handle.remove()
        assert hooks_of(model) == before
    model[2].register_forward_hook(stop)
    with pytest.raises(Stop) as raised:
        compare.compare(model, inputs)
    assert "the run on cpu" in raised.value.__notes__[0]
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []


def test_the_program_goes_on_with_its_own_random_numbers():
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    before = torch.get_rng_state(), torch.vdev.get_rng_state()
    assert compare.compare(model, (torch.ones(2, 3),)).same
    after = torch.get_rng_state(), torch.vdev.get_rng_state()
    assert all(map(torch.equal, before, after))


class NormOfNorm(nn.Sequential):
    """The means that the second norm computes are 0 but for rounding."""

    def __init__(self):
        super().__init__(nn.Linear(16, 16), nn.LayerNorm(16), nn.LayerNorm(16), nn.Linear(16, 1))


class SparseGradient(nn.Embedding):
    def __init__(self):
        super().__init__(9, 4, sparse=True)

    def forward(self, x):
        return super().forward(x.abs().long() % 9)


@pytest.mark.parametrize("kind", [NormOfNorm, SparseGradient])
def test_a_sound_model_with(kind):
    torch.manual_seed(0)
    reference = compare.Side("cpu", torch.float64)
    report = compare.compare(kind(), (torch.randn(8, 16) * 3,), reference=reference)
    assert report.same, report


def test_a_function_with_its_own_backward_pass():
    """A whole step of training is compared: the weights after it count, too."""
    wrong = {"vdev": 1.5, "cpu": 1.0}

    def step(model, x):
        loss = model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad * wrong[x.device.type]
        return loss.detach()

    model, inputs = compare_models.make("autoencoder")
    report = compare.compare(step, (model, *inputs))
    assert report.operator == "aten::mul.Tensor" and not report.backward and report.module == ""
    name = (
        "test_a_function_with" if sys.version_info >= (3, 11) else "step"
    )  # Python 3.10 has no qualified name
    assert report.line.startswith(__file__) and f"in {name}" in report.line
    assert report.culprit is None  # the operator itself is sound
    assert "No operator up to the next one differs with the same arguments" in str(report)
    assert report.differences.result.name == "parameter encoder.0.weight"
    wrong["vdev"] = 1.0
    assert compare.compare(step, (model, *inputs)).same


def test_sides_may_differ_in_dtype_and_options():
    model, inputs = compare_models.make("conv net")
    single, double = compare.Side("vdev"), compare.Side("cpu", torch.float64)
    tolerance = compare.Tolerance(least=1e-6)
    assert compare.compare(model, inputs, side=single, reference=double, tolerance=tolerance).same
    strict = compare.Tolerance({torch.float32: (0.0, 0.0), torch.float64: (0.0, 0.0)})
    report = compare.compare(model, inputs, side=single, reference=double, tolerance=strict)
    assert report.operator == "aten::convolution" and "cpu (torch.float64)" in str(report)
    cast = compare.Side("vdev", context=lambda: torch.autocast("vdev", dtype=torch.bfloat16))
    bits = compare.Tolerance(bits=True)
    report = compare.compare(model, inputs, side=cast, reference="vdev", tolerance=bits)
    assert (report.operator, report.module) == ("aten::convolution", "conv")
    assert "dtype torch.bfloat16, and torch.float32 in the reference" in str(report)
    assert compare.compare(model, inputs, side="vdev:1", reference="vdev", tolerance=bits).same


def test_a_recording_of_another_process_is_a_reference(tmp_path):
    model, inputs = compare_models.make("transformer")
    compare.record(model, inputs).save(tmp_path / "run")
    reference = compare.Recording.load(tmp_path / "run")
    assert compare.compare(model, inputs, reference=reference).same
    with torch.no_grad():
        model.layers[1].linear2.bias[3] += 1.0
    report = compare.compare(model, inputs, reference=reference)
    assert (report.operator, report.module) == ("aten::addmm", "layers.1.linear2")
    torch.save([1], tmp_path / "list")
    with pytest.raises(TypeError, match="holds a list"):
        compare.Recording.load(tmp_path / "list")


@pytest.mark.asynchronous
def test_a_recorded_run_stays_asynchronous(gate):
    """Else what only goes wrong with operators as tasks would go right under the tool."""

    def function(x):
        gate.close(torch.vdev.current_stream())
        y = torch.nn.functional.gelu(x * 2 + 1)
        queued.append(not torch.vdev.current_stream().query())
        gate.open()
        return y

    queued = []
    compare.record(function, (torch.ones(8, device="vdev"),))
    assert queued == [True]


def test_bits():
    model, inputs = nn.Identity(), (torch.tensor([1.0, 2.0, float("nan")]),)

    def nudged(x):
        return x if x.device.type == "cpu" else torch.nextafter(x, x + 1)

    assert compare.compare(nudged, inputs).same
    report = compare.compare(nudged, inputs, tolerance=compare.Tolerance(bits=True))
    assert report.differences.result.difference.count == 2
    assert compare.compare(model, inputs, tolerance=compare.Tolerance(bits=True)).same


def test_arguments_are_checked():
    with pytest.raises(TypeError, match=r"must be a tuple, not a Tensor: write \(x,\)"):
        compare.compare(nn.Identity(), torch.ones(1))
