"""Attention on cards that pose as CUDA."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def attention(backend, **options):
    """Returns the result, and the query's gradient, of a kind of attention on a card and on the CPU."""
    torch.manual_seed(0)
    heads = 2 if options.get("enable_gqa") else 4
    # CUDA's flash attention takes float16 and bfloat16 alone.
    dtype = torch.float16 if backend == SDPBackend.FLASH_ATTENTION else torch.float32
    inputs = [torch.randn(2, n, 8, 16).to(dtype) for n in (4, heads, heads)]
    results = []
    for device in ("cuda", "cpu"):
        q, k, v = (x.to(device, dtype if device == "cuda" else torch.float32) for x in inputs)
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        with sdpa_kernel(backend if device == "cuda" else SDPBackend.MATH):
            y = F.scaled_dot_product_attention(q, k, v, **options)
        y.square().sum().backward()
        results.append([x.detach().cpu().float() for x in (y, q.grad, k.grad, v.grad)])
    return results


def tolerance(backend):
    flash = backend == SDPBackend.FLASH_ATTENTION
    return {"rtol": 1e-2, "atol": 1e-2} if flash else {"rtol": 1e-4, "atol": 1e-5}


def probe_each_kind_of_attention_is_chosen():
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        for causal in (False, True):
            torch.testing.assert_close(*attention(backend, is_causal=causal), **tolerance(backend))


def probe_attention_has_grouped_queries():
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        torch.testing.assert_close(*attention(backend, enable_gqa=True), **tolerance(backend))


def heads_of(dtype, *sizes, tokens=8):
    """Returns random tensors of a card, with these sizes of the heads."""
    return [torch.randn(1, 2, tokens, size, device="cuda", dtype=dtype) for size in sizes]


def probe_fused_attention_takes_what_cuda_takes():
    flash, efficient = SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
    half, single, double = torch.float16, torch.float32, torch.float64
    for backend, inputs in (
        (flash, heads_of(half, 20, 20, 20)),
        (efficient, heads_of(single, 20, 20, 20)),
        (efficient, heads_of(half, 32, 32, 64)),
        (efficient, heads_of(half, 64, 64, 32)),
    ):
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(*inputs)
    for backend, inputs in (
        (flash, heads_of(single, 32, 32, 32)),
        (flash, heads_of(half, 320, 320, 320)),
        (flash, heads_of(half, 32, 32, 64)),
        (efficient, heads_of(double, 32, 32, 32)),
        (efficient, heads_of(half, 20, 20, 20)),
        (efficient, heads_of(single, 18, 18, 18)),
    ):
        with sdpa_kernel(backend), pytest.raises(RuntimeError, match="No available kernel"):
            F.scaled_dot_product_attention(*inputs)
        F.scaled_dot_product_attention(*inputs)  # in another kernel


def probe_flash_attention_needs_square_causal_masks():
    query, (key,) = heads_of(torch.float16, 32)[0], heads_of(torch.float16, 32, tokens=4)
    refused = pytest.raises(RuntimeError, match="is_causal needs queries and keys of one length")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), refused:
        F.scaled_dot_product_attention(query, key, key, is_causal=True)
    F.scaled_dot_product_attention(query, key, key, is_causal=True)


def probe_efficient_attention_has_heads_of_values():
    results = []
    for size in (8, 48):
        for device in ("cuda", "cpu"):
            torch.manual_seed(2)
            inputs = [torch.randn(1, 2, 8, n).to(device).requires_grad_() for n in (32, 32, size)]
            with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION if device == "cuda" else SDPBackend.MATH):
                y = F.scaled_dot_product_attention(*inputs, is_causal=True)
            y.square().sum().backward()
            results.append([x.detach().cpu() for x in (y, *(x.grad for x in inputs))])
        torch.testing.assert_close(results[-2], results[-1], rtol=1e-4, atol=1e-5)


def probe_mask_of_efficient_attention_has_the_dtype_of_queries():
    inputs = heads_of(torch.bfloat16, 32, 32, 32)
    mask = torch.zeros(8, 8, device="cuda")
    with pytest.raises(RuntimeError, match="invalid dtype for bias - should match query's dtype"):
        F.scaled_dot_product_attention(*inputs, attn_mask=mask)
    F.scaled_dot_product_attention(*inputs, attn_mask=mask.bfloat16())
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
        F.scaled_dot_product_attention(*inputs, attn_mask=mask.bfloat16().expand(2, 8, 8))


def probe_attention_has_masks():
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    q = torch.randn(1, 2, 8, 16)
    expected = F.scaled_dot_product_attention(q, q, q, mask)
    c = q.cuda()
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        torch.testing.assert_close(F.scaled_dot_product_attention(c, c, c, mask.cuda()).cpu(), expected)


def probe_attention_of_cudnn_is_refused():
    q = torch.randn(1, 2, 8, 16, device="cuda", dtype=torch.float16)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
        F.scaled_dot_product_attention(q, q, q)
