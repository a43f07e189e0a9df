"""Tests of the operators, as torch tests its own: against a reference, on every device and dtype."""

from __future__ import annotations

import threading

import pytest
import torch
from squared_relu import CARD, bias_squared_relu, card, checksum, softcap, squared_relu
from torch.testing import make_tensor
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.opinfo.core import OpInfo, SampleInput


def samples(op, device, dtype, requires_grad, **kwargs):
    for shape in ((), (0,), (5,), (3, 4), (2, 3, 4)):
        yield SampleInput(make_tensor(shape, device=device, dtype=dtype, requires_grad=requires_grad))
    strided = make_tensor((4, 3), device=device, dtype=dtype, requires_grad=requires_grad, noncontiguous=True)
    yield SampleInput(strided)


def bias_samples(op, device, dtype, requires_grad, **kwargs):
    for shape in ((4,), (3, 4), (2, 3, 4)):
        x, bias = (
            make_tensor(size, device=device, dtype=dtype, requires_grad=requires_grad)
            for size in (shape, (4,))
        )
        yield SampleInput(x, args=(bias,))


def reference(x, *bias):
    return torch.relu(sum(bias, start=x)).square()


DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
OPERATORS = [
    OpInfo(
        name,
        op=operator,
        ref=reference,
        dtypes=DTYPES,
        sample_inputs_func=inputs,
        supports_out=False,
        supports_gradgrad=False,
        supports_autograd=True,
    )
    for name, operator, inputs in (
        ("squared_relu", squared_relu, samples),
        ("bias_squared_relu", bias_squared_relu, bias_samples),
    )
]


class TestOperators(TestCase):
    @ops(OPERATORS, allowed_dtypes=DTYPES)
    def test_values(self, device, dtype, op):
        for sample in op.sample_inputs(device, dtype):
            expected = op.ref(sample.input, *sample.args)
            self.assertEqual(op(sample.input, *sample.args), expected)

    @ops(OPERATORS, allowed_dtypes=(torch.float64,))
    def test_gradients(self, device, dtype, op):
        for sample in op.sample_inputs(device, dtype, requires_grad=True):
            self.assertTrue(torch.autograd.gradcheck(op, (sample.input, *sample.args)))

    @ops(OPERATORS, allowed_dtypes=(torch.float32,))
    def test_registration(self, device, dtype, op):
        """Schema, autograd, fake tensors and torch.compile's tracing agree with the kernel."""
        native = getattr(torch.ops.examples, op.name).default
        checks = ["test_schema", "test_faketensor", "test_aot_dispatch_dynamic"]
        if device == "cpu":  # torch knows this check for its own devices alone
            checks.append("test_autograd_registration")
        for sample in op.sample_inputs(device, dtype, requires_grad=True):
            torch.library.opcheck(native, (sample.input, *sample.args), test_utils=checks)


instantiate_device_type_tests(TestOperators, globals(), only_for=("cpu", CARD), allow_xpu=False)


def test_the_kernel_runs_in_stream_order():
    """What was queued before the kernel comes before it, and what is queued later comes after."""
    x = torch.zeros(4, device=CARD)
    opened = threading.Event()
    stream = card.Stream()
    with card.stream(stream):
        card._launch_host_func(lambda: opened.wait(60))
        x.fill_(3.0)
        y = squared_relu(x)
        x.fill_(5.0)
    opened.set()
    stream.synchronize()
    assert y.tolist() == [9.0] * 4


def test_autocast_computes_in_float32():
    x = torch.full((3,), 300.0, device=CARD, dtype=torch.float16)
    assert squared_relu(x).isinf().all()
    with torch.autocast(CARD, dtype=torch.float16):
        assert squared_relu(x).tolist() == [90000.0] * 3


def test_an_error_names_the_operator():
    with pytest.raises(RuntimeError, match=r"bias_squared_relu: the bias has size \[3\], and x \[2, 4\]"):
        bias_squared_relu(torch.ones(2, 4, device=CARD), torch.ones(3, device=CARD))


@pytest.mark.parametrize("device", ["cpu", CARD])
def test_the_operator_in_python(device):
    x = torch.randn(3, 4, device=device, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(softcap, (x, 2.0))
    torch.library.opcheck(softcap, (x, 2.0), test_utils=("test_schema", "test_faketensor"))


def test_python_reads_memory_in_stream_order():
    x = torch.zeros(100, dtype=torch.uint8, device=CARD)
    x += 2
    total = checksum(x)
    x += 1
    assert total.item() == 200 and checksum(x).item() == 300
