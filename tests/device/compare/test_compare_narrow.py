"""vccl.compare in narrow dtypes: rounding is no difference, and operators that are wrong are still found."""

import compare_models
import pytest
import torch
import torch.nn.functional as F
from compare_models import wrong_on_cards
from torch import nn
from torch.utils._pytree import tree_leaves

from vccl import compare

pytestmark = pytest.mark.filterwarnings("ignore:Warning only once for all operators")


class Language(nn.Module):
    """Its loss has float32 on the card and bfloat16 on the CPU within autocast, so other casts."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 20, bias=False)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        hidden = self.layer(self.embed(tokens), src_mask=mask, is_causal=True)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), tokens.flatten())


def language():
    torch.manual_seed(0)
    return Language(), (torch.randint(0, 20, (2, 6)),)


def sides(dtype):
    return {"side": compare.Side("vdev", dtype), "reference": compare.Side("cpu", dtype)}


def autocast(dtype=torch.bfloat16):
    return {
        "side": compare.Side("vdev", context=lambda: torch.autocast("vdev", dtype=dtype)),
        "reference": compare.Side("cpu", context=lambda: torch.autocast("cpu", dtype=dtype)),
    }


def much_too_large(output):
    tree_leaves(output)[0].mul_(1.25)


CASES = {
    "bfloat16 transformer": (
        lambda: compare_models.make("transformer"),
        sides(torch.bfloat16),
        "layers.0.norm1",
    ),
    "float16 transformer": (
        lambda: compare_models.make("transformer"),
        sides(torch.float16),
        "layers.0.norm1",
    ),
    "autocast of a language model": (language, autocast(), "layer.norm1"),
    "autocast against float32": (language, {"side": autocast()["side"]}, "layer.norm1"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_sound_model(case):
    make, options, _ = CASES[case]
    report = compare.compare(*make(), **options)
    assert report.same and report.differences.compared > 20, report


def test_a_bound_for_float32_is_none_for_what_is_narrower():
    wider = compare.Tolerance({torch.float32: (3e-2, 1.6e-2)})
    assert compare.compare(*language(), **autocast(), tolerance=wider).same


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_operator(case):
    make, options, module = CASES[case]
    with wrong_on_cards("aten::native_layer_norm", much_too_large):
        report = compare.compare(*make(), **options)
    assert (report.operator, report.module) == ("aten::native_layer_norm", module), report


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_operators_in_another_order(name):
    """The CPU computes the gates of a recurrent layer in another order than cards in float16."""
    model, inputs = compare_models.make(name)
    assert compare.compare(model, inputs, **sides(torch.float16)).same


def test_a_wrong_cast():
    """Casts are not compared, but what reads their results is, and then the third run finds the cast."""

    def cast(x, *, dtype=None, device=None, **_options):
        y = torch.empty(x.shape, dtype=dtype or x.dtype, device=device or x.device).copy_(x)
        return y.mul_(1.25) if (x.dtype, y.dtype) == (torch.float32, torch.bfloat16) else y

    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("_to_copy", cast, torch._C._dispatch_key_for_device("vdev"))
        report = compare.compare(lambda x: x.to(torch.bfloat16).exp(), (torch.ones(3),))
    finally:
        library._destroy()
    assert report.operator == "aten::_to_copy", report
    assert report.differences.operator.call.name == "aten::exp"


def function_with_narrow_part(error, factor):
    """Two outputs: one that comes of a bfloat16 tensor, by views and autograd, and one that does not."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            on_card = x.device.type == "vdev"
            narrow = (x * (error if on_card else 1.0)).to(torch.bfloat16)
            wide = narrow.float().view(2, 2) * self.weight.view(2, 2)
            return wide.exp(), x.sin() * (factor if on_card else 1.0)

    return compare.compare(Mixed(), (torch.linspace(0.5, 1, 4),))


def test_what_comes_of_a_narrow_tensor_is_judged_by_its_rounding():
    """The same error counts where no narrow dtype is behind it."""
    assert function_with_narrow_part(1.0, 1.0).same
    assert function_with_narrow_part(1.0, 1.001).differences.result.name == "output 1"
    report = function_with_narrow_part(1.004, 1.0)  # the product before the cast is float32
    assert report.operator == "aten::mul.Tensor" and report.differences.result is None, report
    assert "output 0" in str(function_with_narrow_part(1.5, 1.0))


def test_rounding_is_told_from_a_program_that_differs():
    """A ReLU that flips moves single elements, and a wrong factor moves the whole tensor."""

    def function(x):
        x = x.to(torch.bfloat16) * (factor if x.device.type == "vdev" else 1.0)
        flipped = torch.where(
            torch.arange(64, device=x.device) == 3, flip if x.device.type == "vdev" else x, x
        )
        return flipped * 1.0

    x, factor, flip = torch.rand(64) + 0.5, 1.0, 0.0
    report = compare.compare(function, (x,))
    assert report.same and "By rounding in narrow dtypes alone: aten::where.self" in str(report), report
    factor = 1.5
    assert not compare.compare(function, (x,)).same
    factor, given = 1.0, compare.Tolerance({torch.bfloat16: (1e-2, 1e-2)})
    assert not compare.compare(function, (x,), tolerance=given).same  # the program's own bound is kept


def test_a_file_is_judged_by_its_narrowest_argument(tmp_path):
    x = torch.rand(64, dtype=torch.bfloat16, device="vdev")
    with compare.dump_operator("_softmax", tmp_path / "call"):
        torch.softmax(x, 0)
    for factor, found in ((1.01, False), (1.25, True)):
        with wrong_on_cards("aten::_softmax", lambda output, factor=factor: output.mul_(factor)):
            assert (compare.replay(tmp_path / "call").difference is not None) == found
