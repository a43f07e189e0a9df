"""Quantized tensors on a card, compared with the CPU's."""

import copy
import pickle

import pytest
import torch
from layouts import compare, saved
from torch.nn import functional

# torch announces their removal at the first one.
pytestmark = pytest.mark.filterwarnings("ignore")
NUMBERS = torch.linspace(-1, 1, 24).view(4, 6)


def per_tensor(device: str, dtype: torch.dtype = torch.quint8) -> torch.Tensor:
    return torch.quantize_per_tensor(NUMBERS.to(device), 0.1, 3, dtype)


def per_channel(device: str) -> torch.Tensor:
    scales = torch.tensor([0.1, 0.2, 0.3, 0.4], device=device)
    zeros = torch.zeros(4, dtype=torch.long, device=device)
    return torch.quantize_per_channel(NUMBERS.to(device), scales, zeros, 0, torch.qint8)


def image(x: torch.Tensor) -> torch.Tensor:
    return x.view(1, 1, 4, 6)


def packed(x: torch.Tensor) -> torch.Tensor:
    weights = torch.quantize_per_tensor(NUMBERS.to(x.device), 0.1, 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(weights, None)


BOTH = {
    "make": lambda x: x,
    "integers": lambda x: x.int_repr(),
    "print": lambda x: repr(x),
    "clone": lambda x: x.clone(),
    "move and return": lambda x: x.cpu().to(x.device),
    "copy_": lambda x: torch.empty_like(x).copy_(x),
    "copy_ of numbers": lambda x: x.clone().copy_(NUMBERS.to(x.device) * 2),
    "index": lambda x: x[1:3],
    "scheme": lambda x: str(x.qscheme()),
    "equal": lambda x: [torch.equal(x, x), x == x],
    "fill_": lambda x: x.clone().fill_(0.5),
    "save": lambda x: saved(x),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "deepcopy": lambda x: copy.deepcopy(x),
}
PER_TENSOR = {
    "scale": lambda x: [x.q_scale(), x.q_zero_point()],
    "view": lambda x: x.view(2, 12),
    "transpose": lambda x: x.t().contiguous(),
    "permute": lambda x: x.permute(1, 0),
    "cat": lambda x: torch.cat([x, x]),
    "stack": lambda x: torch.stack([x, x]),
    "relu": lambda x: x.relu(),
    "sigmoid": lambda x: x.sigmoid(),
    "clamp": lambda x: torch.clamp(x, -0.5, 0.5),
    "max": lambda x: x.max(),
    "mean": lambda x: x.mean(1),
    "sort": lambda x: x.sort()[0],
    "index_select": lambda x: x.index_select(0, torch.tensor([0, 2], device=x.device)),
    "masked_fill": lambda x: x.masked_fill(NUMBERS.to(x.device) > 0, 0.1),
    "resize_": lambda x: x.clone().resize_(2, 3),
    "pad": lambda x: functional.pad(x, (1, 1)),
    "max_pool2d": lambda x: functional.max_pool2d(image(x), 2),
    "avg_pool2d": lambda x: functional.avg_pool2d(image(x), 2),
    "interpolate": lambda x: functional.interpolate(image(x), scale_factor=2),
    "quantized.add": lambda x: torch.ops.quantized.add(x, x, 0.1, 0),
    "quantized.mul": lambda x: torch.ops.quantized.mul(x, x, 0.1, 0),
    "quantized.linear": lambda x: torch.ops.quantized.linear(x, packed(x), 0.1, 0),
    "quantized.linear_dynamic": lambda x: torch.ops.quantized.linear_dynamic(x.dequantize(), packed(x)),
    "from integers": lambda x: torch._make_per_tensor_quantized_tensor(x.int_repr(), 0.1, 0),
}
PER_CHANNEL = {
    "scales": lambda x: [x.q_per_channel_scales(), x.q_per_channel_zero_points()],
    "axis": lambda x: x.q_per_channel_axis(),
}


@pytest.mark.parametrize("name", BOTH | PER_TENSOR)
def test_per_tensor(name):
    compare(lambda device: (BOTH | PER_TENSOR)[name](per_tensor(device)))


@pytest.mark.parametrize("name", BOTH | PER_CHANNEL)
def test_per_channel(name):
    compare(lambda device: (BOTH | PER_CHANNEL)[name](per_channel(device)))


@pytest.mark.parametrize("make", [per_tensor, per_channel])
def test_moving(make):
    there = make("cpu").to("vdev:1")
    assert there.device == (there.clone()).device == there.int_repr().device == torch.device("vdev:1")
    back = there.to("vdev:0").cpu()
    assert back.device.type == "cpu" and torch.equal(back, make("cpu"))
    assert saved(make("cpu"), map_location="vdev").device == torch.device("vdev:0")


def test_what_does_not_fit_is_refused():
    x = per_tensor("vdev")
    with pytest.raises(RuntimeError, match="one dtype and scheme"):
        x.copy_(per_channel("vdev"))
    with pytest.raises(RuntimeError, match="dequantize"):
        torch.empty(4, 6, device="vdev").copy_(x)
    with pytest.raises(NotImplementedError, match=r"cumsum.*dequantize"):
        x.cumsum(0)
