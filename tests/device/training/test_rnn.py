"""LSTM, GRU and RNN: a card gives what the CPU gives, to the last bit."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn
from torch.utils._python_dispatch import TorchDispatchMode

LENGTHS = [7, 5, 5, 2]
KINDS = [
    *((kind, {}) for kind in (nn.LSTM, nn.GRU, nn.RNN)),
    (nn.RNN, {"nonlinearity": "relu"}),
    (nn.LSTM, {"proj_size": 3}),
]


def make(kind, dtype=torch.float32, **options):
    torch.manual_seed(0)
    return kind(6, 8, num_layers=2, **options).to(dtype)


def forward(layer, device, *, packed=False, dtype=torch.float32):
    """The input, the output and the last states, on the device."""
    torch.manual_seed(1)
    input = torch.randn(4, 7, 6, dtype=dtype).to(device).requires_grad_()
    steps = input if layer.batch_first else input.transpose(0, 1)
    if packed:
        steps = rnn.pack_padded_sequence(steps, LENGTHS, batch_first=layer.batch_first)
    output, states = layer(steps)
    return input, output.data, states if isinstance(states, tuple) else (states,)


def run(layer, device, **options):
    """The output, the last states and all gradients."""
    layer = copy.deepcopy(layer).to(device)
    input, output, states = forward(layer, device, **options)
    total = output.float().square().sum() + sum((1.5 * state.float()).sin().sum() for state in states)
    gradients = torch.autograd.grad(total, (input, *layer.parameters()))
    return [tensor.detach().cpu() for tensor in (output, *states, *gradients)]


def assert_same(found, expected):
    assert [tensor.dtype for tensor in found] == [tensor.dtype for tensor in expected]
    assert [tensor.stride() for tensor in found] == [tensor.stride() for tensor in expected]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind, options", KINDS)
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_layers(kind, options, bidirectional, packed, dtype):
    for bias, batch_first in ((True, True), (False, False)):
        layer = make(kind, dtype, bias=bias, bidirectional=bidirectional, batch_first=batch_first, **options)
        found, expected = (run(layer, device, packed=packed, dtype=dtype) for device in ("vdev", "cpu"))
        assert_same(found, expected)


@pytest.mark.parametrize("kind, options", KINDS)
@pytest.mark.parametrize("packed", [True, False])
def test_autocast(kind, options, packed):
    """Where the processor has no AVX-512, oneDNN has no LSTM for bfloat16, and the CPU's raises with it."""
    layer = make(kind, **options)
    results = []
    for device in ("vdev", "cpu"):
        with (
            torch.autocast(device, dtype=torch.bfloat16),
            torch.backends.mkldnn.flags(enabled=torch.ops.mkldnn._is_mkldnn_bf16_supported()),
        ):
            results.append(run(layer, device, packed=packed))
    assert_same(*results)


@pytest.mark.parametrize("kind, options", KINDS)
@pytest.mark.parametrize("packed", [True, False])
def test_autocast_to_float16(kind, options, packed):
    """Results are float16, as CUDA's. The CPU's LSTM refuses it, and a card computes it without oneDNN."""
    layer = make(kind, **options)
    with torch.autocast("vdev", dtype=torch.float16):
        found = run(layer, "vdev", packed=packed)
    expected = run(layer, "cpu", packed=packed)
    torch.testing.assert_close([x.float() for x in found], expected, rtol=0.05, atol=0.05)
    gradients = 1 + len(list(layer.parameters()))
    assert {result.dtype for result in found[:-gradients]} == {torch.float16}
    assert {gradient.dtype for gradient in found[-gradients:]} == {torch.float32}


@pytest.mark.parametrize("kind, options", KINDS)
@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_without_gradients(kind, options, guard):
    layer = make(kind, **options)
    with guard():
        results = [
            [output.cpu(), *(state.cpu() for state in states)]
            for _, output, states in (
                forward(copy.deepcopy(layer).to(device), device) for device in ("vdev", "cpu")
            )
        ]
    assert_same(*results)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("packed", [True, False])
def test_dropout_stands_between_layers(kind, packed):
    # With probability 1 the second layer sees zeros, so results do not depend on drawn numbers.
    layer = make(kind, dropout=1.0)
    assert_same(run(layer, "vdev", packed=packed), run(layer, "cpu", packed=packed))
    assert_same(run(layer.eval(), "vdev", packed=packed), run(layer, "cpu", packed=packed))
    some = make(kind, dropout=0.5).to("vdev")
    outputs = []
    for seed in (0, 0, 1):
        torch.manual_seed(1)
        input = torch.randn(7, 4, 6).to("vdev")
        torch.vdev.manual_seed(seed)
        outputs.append(some(input)[0])
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])


class Names(TorchDispatchMode):
    """Notes which operators run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind, options", KINDS)
@pytest.mark.parametrize("enabled", [True, False])
def test_the_operators_are_those_of_the_cpu(kind, options, enabled):
    layer, names = make(kind, **options), []
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled and before)
    try:
        for device in ("vdev", "cpu"):
            moved = copy.deepcopy(layer).to(device)
            with Names() as mode:
                forward(moved, device)
            names.append(mode.names)
        if kind is nn.LSTM:
            assert_same(run(layer, "vdev"), run(layer, "cpu"))
    finally:
        torch._C._set_mkldnn_enabled(before)
    assert names[0] - {"_to_copy"} == names[1]
    assert ("mkldnn_rnn_layer" in names[0]) == (kind is nn.LSTM and not options and enabled and before)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cells(kind, bias, dtype):
    torch.manual_seed(0)
    layer, input = kind(5, 7, bias=bias).to(dtype), torch.randn(3, 5, dtype=dtype)
    results = []
    for device in ("vdev", "cpu"):
        cell, moved = copy.deepcopy(layer).to(device), input.detach().to(device).clone().requires_grad_()
        states = cell(moved)
        states = cell(moved, states)
        leaves = list(states) if isinstance(states, tuple) else [states]
        gradients = torch.autograd.grad(sum(x.square().sum() for x in leaves), (moved, *cell.parameters()))
        results.append([x.detach().cpu() for x in (*leaves, *gradients)])
    assert_same(*results)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell])
def test_second_derivatives(kind):
    layer = kind(3, 2).to("vdev").double()
    input = torch.randn(2, 3, device="vdev", dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda input: layer(input)[0], (input,))


def test_func_transforms():
    layer = make(nn.GRU)
    gradients = []
    for device in ("vdev", "cpu"):
        own = copy.deepcopy(layer).to(device)
        input = torch.linspace(-1, 1, 7 * 4 * 6).view(7, 4, 6).to(device)

        def loss(parameters, own=own, input=input):
            return torch.func.functional_call(own, parameters, (input,))[0].square().sum()

        found = torch.func.grad(loss)({name: x.detach() for name, x in own.named_parameters()})
        gradients.append([x.cpu() for x in found.values()])
    assert_same(*gradients)


def rejected(device, call):
    with pytest.raises(RuntimeError) as caught:
        call(device)
    return str(caught.value).splitlines()[0].replace(f"{device}:0", device).replace(device, "DEVICE")


def lstm(device, *, hidden=(2, 4, 8), cell=(2, 4, 8), states=2, dtype=torch.float32, cut=0):
    layer = make(nn.LSTM).double().to(device)
    input = torch.zeros(7, 4, 6, dtype=torch.float64, device=device)
    first = [torch.zeros(shape, dtype=dtype, device=device) for shape in (hidden, cell)][:states]
    parameters = list(layer.parameters())
    return torch.lstm(input, first, parameters[: len(parameters) - cut], True, 2, 0.0, False, False, False)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda device: lstm(device, states=1), "two hidden states"),
        (lambda device: lstm(device), "must have the same dtype"),
        (lambda device: lstm(device, dtype=torch.float64, cut=1), "incorrect number of RNN parameters"),
        (lambda device: lstm(device, dtype=torch.float64, cut=4), "Expected more weights"),
        (
            lambda device: nn.GRUCell(5, 7).to(device)(torch.zeros(3, 4, device=device)),
            "inconsistent input_size",
        ),
        (
            lambda device: nn.LSTMCell(5, 7).to(device)(
                torch.zeros(3, 5, device=device), 2 * [torch.zeros(2, 7, device=device)]
            ),
            "doesn't match hidden",
        ),
    ],
)
def test_bad_arguments_are_refused_in_the_words_of_the_cpu(call, message):
    assert message in rejected("cpu", call)
    assert rejected("vdev", call) == rejected("cpu", call)


@pytest.mark.parametrize(
    "shapes, message",
    [({"hidden": (4, 8)}, "should be 3-D"), ({"cell": (1, 4, 8)}, r"Expected c_0 size\(0\) to be 2")],
)
def test_states_that_crash_the_cpu_are_refused(shapes, message):
    with pytest.raises(RuntimeError, match=message):
        lstm("vdev", **shapes)


def test_tensors_of_another_device_are_refused():
    layer = make(nn.LSTM).to("vdev")
    for input, state in (("vdev", "cpu"), ("vdev:1", "vdev:1")):
        states = 2 * (torch.zeros(2, 4, 8, device=state),)
        with pytest.raises(RuntimeError, match="tensors are not at the same device"):
            layer(torch.zeros(7, 4, 6, device=input), states)


def test_batch_sizes_must_be_on_the_cpu():
    layer = make(nn.GRU).to("vdev")
    packed = rnn.pack_padded_sequence(torch.zeros(7, 4, 6, device="vdev"), LENGTHS)
    state = torch.zeros(2, 4, 8, device="vdev")
    arguments = (state, list(layer.parameters()), True, 2, 0.0, False, False)
    assert torch.gru(packed.data, packed.batch_sizes, *arguments)[0].shape == (sum(LENGTHS), 8)
    with pytest.raises(RuntimeError, match="batch_sizes of a packed sequence"):
        torch.gru(packed.data, packed.batch_sizes.int(), *arguments)
