"""vccl.compare with tensors of other kinds (nested, sparse, quantized) and operators that take functions."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.scan import scan
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from vccl import compare

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support"),
    pytest.mark.filterwarnings("ignore:Warning only once for all operators"),
]


def nested(layout=torch.strided, device="cpu"):
    parts = [torch.ones(2, 3), torch.full((4, 3), 2.0)]
    return torch.nested.nested_tensor(parts, layout=layout, device=device, requires_grad=True)


def quantized(x):
    return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)


KINDS = {
    "strided nested": (lambda x: (x * 2).relu(), nested()),
    "jagged": (lambda x: (x * 2).relu(), nested(torch.jagged)),
    "nested within": (
        lambda x: torch.nested.nested_tensor([x, x[1:]]).to_padded_tensor(0.0),
        torch.ones(3, 2),
    ),
    "coo": (lambda x: x * 2, torch.eye(3).to_sparse()),
    "csr": (lambda x: x @ x.to_dense(), torch.eye(3).to_sparse_csr()),
    "quantized": (lambda x: quantized(x).dequantize() + 1, torch.ones(4)),
    "quantized result": (quantized, torch.ones(4)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_function(kind):
    function, x = KINDS[kind]
    report = compare.compare(function, (x,))
    assert report.same and report.differences.compared > 0 and not report.left_out, report
    with compare.track_nonfinite() as tracker:
        function(x.detach().to("vdev"))
    assert tracker.first is None


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_in_a_module(layout):
    """Its backward pass starts from nested gradients. A wrong factor on the card is found in the elements."""
    wrong = {"vdev": 1.0, "cpu": 1.0}

    class Scale(nn.Module):
        def forward(self, x):
            return x * wrong[x.device.type]

    model = nn.Sequential(nn.Linear(3, 3), Scale())
    assert compare.compare(model, (nested(layout),)).same
    wrong["vdev"] = 1.5
    report = compare.compare(model, (nested(layout),))
    assert (report.operator, report.module) == ("aten::mul.Tensor", "1"), report
    assert report.differences.result.name == "output 0, part 0"


def test_a_nested_tensor_in_a_file(tmp_path):
    with compare.dump_operator("mul.Tensor", tmp_path / "call"):
        nested(device="vdev") * 2
    report = compare.replay(tmp_path / "call", tolerance=compare.Tolerance(bits=True))
    assert report.difference is None and report.arguments == "(nested float32[[2, 3], [4, 3]], 2)"


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nan_in_a_nested_tensor(layout):
    with compare.track_nonfinite() as tracker:
        x = nested(layout, "vdev").detach()
        x * float("nan")
    assert (tracker.first.operator, tracker.first.what) == ("aten::mul.Tensor", "NaN"), tracker.first
    assert tracker.first.cause == "made" and tracker.first.count > 0


def test_nan_in_a_sparse_tensor():
    x = torch.eye(3, device="vdev").to_sparse()
    with compare.track_nonfinite() as tracker:
        y = x * float("nan")
        y + y
    assert tracker.first.operator == "aten::mul.Tensor" and tracker.first.cause == "made"


class Opaque(torch.Tensor):
    """A class that does not tell what it consists of."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function.is_view:
            return args[0]
        raise AssertionError("nobody should compute with it")


def test_what_nobody_can_read_is_named():
    report = compare.compare(lambda x: (Opaque(x), x.to("meta"), x + 1), (torch.ones(2),))
    assert report.same and len(report.left_out) == 3
    lines = str(report).splitlines()
    assert "Not compared: output 0 (Opaque on vdev:0)" in lines
    assert "Not compared: output 1 (Tensor on meta)" in lines


def test_ranks_of_other_kinds_have_fingerprints():
    from vccl.compare.ranks import _entry

    for layout in (torch.strided, torch.jagged):
        x = nested(layout, "vdev").detach()
        assert _entry(x) == _entry(x.clone()) != _entry(x * 2)


class Attention(nn.Module):
    """Its mask leaves the first rows without anything to attend to."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        def mask(_batch, _head, query, key):
            return (query >= key) & (key > 3)

        q = self.linear(x)
        size = x.shape[-2]
        blocks = create_block_mask(mask, None, None, size, size, device=x.device)
        return flex_attention(q, q, q, score_mod=lambda score, *_: score * 2, block_mask=blocks)


def test_flex_attention():
    model, inputs = Attention(), (torch.randn(1, 2, 128, 16),)
    assert compare.compare(model, inputs, reference="vdev:1").same
    sides = {name: compare.Side(name, context=torch.no_grad) for name in ("vdev", "cpu")}
    report = compare.compare(model, inputs, side=sides["vdev"], reference=sides["cpu"], backward=False)
    assert report.same and report.differences.compared > 20, report
    model.to("vdev")
    with compare.track_nonfinite(model) as tracker:
        model(inputs[0].to("vdev")).sum().backward()
    assert tracker.first is None, tracker.first


def test_copies_of_memory_that_nobody_wrote():
    """FlexAttention makes such copies. What is computed of this memory does count."""

    def leave(value, device):
        """Leaves memory of freed tensors that is full of a value."""
        kept = [torch.full((4096,), value, device=device) for _ in range(50)]
        torch.get_device_module("vdev").synchronize(device)
        del kept

    def sound(x):
        copies = [torch.empty_like(x).clone(), torch.empty_like(x).double()]
        into = x.new_empty(x.shape)
        into.copy_(torch.empty_like(x))
        copies[0].copy_(x)
        return copies[0] + into.copy_(x) + copies[1].fill_(1)

    def wrong(x):
        return x + torch.empty_like(x).clone()

    x = torch.ones(4096)
    leave(7.0, "vdev:0")
    leave(float("nan"), "vdev:1")
    assert compare.compare(sound, (x,), reference="vdev:1").same
    leave(7.0, "vdev:0")
    leave(float("nan"), "vdev:1")
    report = compare.compare(wrong, (x,), reference="vdev:1")
    assert report.operator == "aten::add.Tensor", report
    leave(float("nan"), "vdev:0")
    with compare.track_nonfinite() as tracker:
        sound(x.to("vdev:0"))
    assert tracker.first is None, tracker.first


def test_nan_of_flex_attention():
    q = torch.randn(1, 1, 128, 16, device="vdev")
    with compare.track_nonfinite() as tracker:
        flex_attention(q, q, q, score_mod=lambda score, *_: score * float("nan"))
    assert tracker.first.operator == "flex_attention", tracker.first


def test_an_operator_within_a_scan():
    wrong = {"vdev": 1.5, "cpu": 1.0}

    class Sum(nn.Module):
        def forward(self, x):
            return scan(lambda total, y: (total + y, F.silu(y) * wrong[y.device.type]), x[0], x)[1]

    report = compare.compare(nn.Sequential(nn.Linear(4, 4), Sum()), (torch.randn(3, 4),))
    assert (report.operator, report.module) == ("aten::mul.Tensor", "1"), report
    wrong["vdev"] = 1.0
    assert compare.compare(nn.Sequential(nn.Linear(4, 4), Sum()), (torch.randn(3, 4),)).same
