"""Kernels of Liger and of flash-linear-attention give torch's results and gradients, unmodified."""

import importlib

import pytest
import torch
from torch.nn import functional as F

WORDS = torch.arange(12) * 7 % 100


def load(path: str, name: str):
    return getattr(pytest.importorskip(path), name)


def compare(card, function, reference, *shapes, dtype=torch.float32, tolerance=1e-4):
    """Compares results and gradients, relative to their size."""
    values = [torch.randn(shape).to(dtype) for shape in shapes]
    here = [value.to(card).requires_grad_() for value in values]
    there = [value.float().requires_grad_() for value in values]
    result, expected = function(*here), reference(*there)
    weights = torch.randn(expected.shape)
    (result.float() * weights.to(card)).sum().backward()
    (expected * weights).sum().backward()
    pairs = [
        (result.detach(), expected.detach()),
        *((x.grad, y.grad) for x, y in zip(here, there, strict=True)),
    ]
    for found, wanted in pairs:
        assert (found.float().cpu() - wanted).norm() <= tolerance * (wanted.norm() + 1e-3)


ROWS, WEIGHT = (4, 6, 64), (64,)
LIGER = {
    "rms_norm": (
        lambda f: lambda x, w: f(x, w, 1e-6, 0.0, "llama", False),
        lambda x, w: F.rms_norm(x, WEIGHT, w, 1e-6),
        (ROWS, WEIGHT),
        "LigerRMSNormFunction",
    ),
    "fused_add_rms_norm": (
        lambda f: lambda x, r, w: f(x, r, w, 1e-6, 0.0, "llama", False)[0],
        lambda x, r, w: F.rms_norm(x + r, WEIGHT, w, 1e-6),
        (ROWS, ROWS, WEIGHT),
        "LigerFusedAddRMSNormFunction",
    ),
    "layer_norm": (
        lambda f: lambda x, w, b: f(x, w, b, 1e-5),
        lambda x, w, b: F.layer_norm(x, WEIGHT, w, b, 1e-5),
        (ROWS, WEIGHT, WEIGHT),
        "LigerLayerNormFunction",
    ),
    "group_norm": (
        lambda f: lambda x, w, b: f(x, w, b, 8, 4, 1e-5),
        lambda x, w, b: F.group_norm(x, 4, w, b, 1e-5),
        ((2, 8, 10), (8,), (8,)),
        "LigerGroupNormFunction",
    ),
    "swiglu": (lambda f: f, lambda x, y: F.silu(x) * y, (ROWS, ROWS), "LigerSiLUMulFunction"),
    "geglu": (
        lambda f: f,
        lambda x, y: F.gelu(x, approximate="tanh") * y,
        (ROWS, ROWS),
        "LigerGELUMulFunction",
    ),
    "relu_squared": (lambda f: f, lambda x: F.relu(x) ** 2, (ROWS,), "LigerReLUSquaredFunction"),
    "softmax": (lambda f: f, lambda x: F.softmax(x, -1), ((6, 100),), "LigerSoftmaxFunction"),
    "cross_entropy": (
        lambda f: lambda x: f(x, WORDS.to(x.device), None, -100)[0],
        lambda x: F.cross_entropy(x, WORDS),
        ((12, 100),),
        "LigerCrossEntropyFunction",
    ),
    "fused_linear_cross_entropy": (
        lambda f: lambda x, w: f(x, w, WORDS.to(x.device))[0],
        lambda x, w: F.cross_entropy(x @ w.t(), WORDS),
        ((12, 32), (100, 32)),
        "LigerFusedLinearCrossEntropyFunction",
    ),
}


@pytest.mark.parametrize("name", LIGER)
def test_kernels_of_liger(card, name):
    call, reference, shapes, function = LIGER[name]
    compare(card, call(load(f"liger_kernel.ops.{name}", function).apply), reference, *shapes)


def linear_attention(q, k, v):
    scores = torch.einsum("bthd,bshd->bhts", q * q.shape[-1] ** -0.5, k).tril()
    return torch.einsum("bhts,bshd->bthd", scores, v)


def delta_rule(q, k, v, beta):
    k, beta = F.normalize(k, dim=-1), beta.sigmoid()
    state, results = torch.zeros(*q.shape[:1], *q.shape[2:], v.shape[-1]), []
    for t in range(q.shape[1]):
        old = torch.einsum("bhd,bhdv->bhv", k[:, t], state)
        change = (v[:, t] - old) * beta[:, t, :, None]
        state = state + k[:, t, ..., None] * change[..., None, :]
        results.append(torch.einsum("bhd,bhdv->bhv", q[:, t] * q.shape[-1] ** -0.5, state))
    return torch.stack(results, 1)


HEADS, GATES = (1, 32, 2, 32), (1, 32, 2)


@pytest.fixture
def fla(card):
    if card != "cuda":
        pytest.skip("flash-linear-attention knows the devices of torch's own names")
    return lambda path, name: getattr(importlib.import_module(f"fla.{path}"), name)


def test_layers_of_flash_linear_attention(card, fla):
    pytest.importorskip("fla")
    compare(card, fla("modules.activations", "swiglu"), lambda x, y: F.silu(x) * y, ROWS, ROWS)
    compare(card, fla("modules.activations", "logsigmoid"), F.logsigmoid, ROWS)
    norm = fla("modules.layernorm", "rms_norm")
    compare(card, lambda x, w: norm(x, w, None), lambda x, w: F.rms_norm(x, WEIGHT, w, 1e-5), ROWS, WEIGHT)


@pytest.mark.parametrize("form", ["fused_recurrent", "chunk", "fused_chunk"])
def test_linear_attention(card, fla, form):
    pytest.importorskip("fla")
    attend = fla("ops.linear_attn", f"{form}_linear_attn")
    compare(card, lambda q, k, v: attend(q, k, v, normalize=False)[0], linear_attention, HEADS, HEADS, HEADS)


def test_the_delta_rule_in_chunks_of_bfloat16(card, fla):
    pytest.importorskip("fla")
    rule = fla("ops.delta_rule", "chunk_delta_rule")
    compare(
        card,
        lambda q, k, v, beta: rule(q, F.normalize(k, dim=-1), v, beta.sigmoid())[0],
        delta_rule,
        *(HEADS, HEADS, HEADS, GATES),
        dtype=torch.bfloat16,
        tolerance=3e-2,
    )
