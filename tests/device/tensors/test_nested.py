"""Strided nested tensors on a card, compared with the CPU's."""

import pickle

import pytest
import torch
from layouts import compare, gradient, saved
from torch.nn import functional

PARTS = (torch.linspace(0, 1, 6).view(2, 3), torch.linspace(1, 2, 12).view(4, 3))
WEIGHT = torch.linspace(-1, 1, 12).view(4, 3)


def make(device: str, requires_grad: bool = False) -> torch.Tensor:
    return torch.nested.nested_tensor(list(PARTS), device=device, requires_grad=requires_grad)


def linear(x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, WEIGHT.to(x.device), torch.ones(4, device=x.device))


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, (3,), torch.ones(3, device=x.device), torch.zeros(3, device=x.device))


def attention(x: torch.Tensor) -> torch.Tensor:
    heads = x.reshape(2, -1, 1, 3).transpose(1, 2).contiguous()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), torch.no_grad():
        return functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).contiguous()


def masked(device: torch.device) -> torch.Tensor:
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]], dtype=torch.bool, device=device)
    return torch._nested_tensor_from_mask(torch.ones(2, 4, 3, device=device), mask)


OPERATIONS = {
    "make": lambda x: x,
    "from tensors": lambda x: torch.nested.as_nested_tensor([part.to(x.device) for part in PARTS]),
    "from padded": lambda x: torch._nested_from_padded(
        torch.ones(2, 4, 3, device=x.device), torch.tensor([[2, 3], [4, 3]])
    ),
    "from mask": lambda x: masked(x.device),
    "print": lambda x: repr(x),
    "numbers": lambda x: [x.size(0), x.size(2), x.numel(), x.dim()],
    "unbind": lambda x: list(x.unbind()),
    "select": lambda x: x[1],
    "pad": lambda x: x.to_padded_tensor(-1.0, (2, 5, 3)),
    "move and return": lambda x: x.cpu().to(x.device),
    "clone": lambda x: x.clone(),
    "dtype": lambda x: x.double(),
    "transpose": lambda x: x.transpose(1, 2).contiguous(),
    "reshape": lambda x: x.reshape(2, -1, 3),
    "chunk": lambda x: [part.contiguous() for part in x.chunk(3, -1)],
    "cat": lambda x: torch.cat([x, x]),
    "ones_like": lambda x: torch.ones_like(x),
    "add": lambda x: x + x,
    "subtract": lambda x: x - x * 3,
    "product": lambda x: x * x,
    "divide": lambda x: x / 2,
    "in place": lambda x: x.clone().fill_(2.0).add_(x),
    "copy_": lambda x: x.clone().copy_(x.cpu() * 2),
    "relu": lambda x: (-x).relu(),
    "gelu": lambda x: functional.gelu(x),
    "tanh": lambda x: x.tanh().abs(),
    "masked_fill": lambda x: x.masked_fill(x > 1, 0.0),
    "dropout": lambda x: functional.dropout(x, 0.0),
    "softmax": lambda x: x.softmax(-1),
    "sum": lambda x: x.sum(-1, keepdim=True),
    "linear": linear,
    "bmm": lambda x: torch.bmm(x, x.transpose(1, 2)),
    "layer_norm": layer_norm,
    "attention": attention,
    "save": lambda x: saved(x, weights_only=False),  # which torch 2.15 asks for
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
}
GRADIENTS = {
    "product": lambda x: x * 3,
    "linear": linear,
    "softmax": lambda x: x.softmax(-1),
    "relu": lambda x: x.relu(),
    "bmm": lambda x: torch.bmm(x, x.transpose(1, 2)),
    "layer_norm": layer_norm,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(name):
    compare(lambda device: OPERATIONS[name](make(device)))


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient(name):
    def run(device):
        leaf = make(device, requires_grad=True)
        return gradient(leaf, GRADIENTS[name](leaf))

    compare(run)


def test_gradient_of_the_parts():
    def run(device):
        leaf = PARTS[0].clone().to(device).requires_grad_()
        return gradient(leaf, torch.nested.as_nested_tensor([leaf, leaf * 2]))

    compare(run)


def test_moving():
    there = make("cpu").to("vdev:1")
    assert there.device == (there * 2).device == there[0].device == torch.device("vdev:1")
    back = there.to("vdev:0").cpu()
    assert all(torch.equal(a, b) for a, b in zip(back.unbind(), PARTS, strict=True))
    assert saved(make("cpu"), weights_only=False, map_location="vdev").device == torch.device("vdev:0")


def test_what_the_cpu_has_not_is_refused():
    with pytest.raises(RuntimeError):
        make("vdev") @ torch.ones(3, 3, device="vdev").cumsum(0)[0]
    with pytest.raises(NotImplementedError, match="to_padded_tensor"):
        make("vdev").cumsum(1)
