"""FlexAttention on a card, with scores, block masks and grouped heads, beside the CPU's."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

LENGTH = 256


def causal(batch, head, query, key):
    return query >= key


def biased(score, batch, head, query, key):
    return score + 0.1 * (query - key)


def attention(device, call=flex_attention, gradients=False):
    """The result of four query heads over two key heads, and the gradients of query and key."""
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, LENGTH, 32).to(device).requires_grad_(gradients) for heads in (4, 2, 2)
    )
    mask = create_block_mask(causal, None, None, LENGTH, LENGTH, device=device)
    result = call(query, key, value, score_mod=biased, block_mask=mask, enable_gqa=True)
    assert result.device.type == mask.kv_indices.device.type == torch.device(device).type
    if gradients:
        result.sum().backward()
    return [tensor.detach().cpu() for tensor in (result, query.grad, key.grad) if tensor is not None]


# Inductor has no template of this attention for cards, which then run its operators one by one.
@pytest.mark.filterwarnings("ignore:torch.compile. Inductor cannot compile")
def test_a_card_gives_what_the_cpu_gives():
    wanted = attention("cpu")
    torch.testing.assert_close(attention("vdev"), wanted, atol=1e-4, rtol=1e-4)
    compiled = attention("vdev", torch.compile(flex_attention))
    torch.testing.assert_close(compiled, wanted, atol=1e-4, rtol=1e-4)


def test_gradients():
    """torch refuses these on the CPU, so they are compared with those of plain operators."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, LENGTH, 32).requires_grad_() for heads in (4, 2, 2))
    place = torch.arange(LENGTH)
    distance = place[:, None] - place
    scores = query @ key.repeat_interleave(2, 1).mT / 32**0.5 + 0.1 * distance
    weights = scores.masked_fill(distance < 0, -torch.inf).softmax(-1)
    result = weights @ value.repeat_interleave(2, 1)
    result.sum().backward()
    wanted = [tensor.detach() for tensor in (result, query.grad, key.grad)]
    torch.testing.assert_close(attention("vdev", gradients=True), wanted, atol=1e-4, rtol=1e-4)
