"""FlexAttention on a card beside the CPU's: with scores, masks, grouped heads, compiled, under autocast."""

import sys

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


COMPILES = """
import torch
from torch.nn.attention.flex_attention import flex_attention

torch.manual_seed(0)
tensors = torch.randn(3, 1, 4, 256, 32).unbind()
with torch.no_grad():
    compiled = torch.compile(flex_attention, fullgraph=True)
    for _ in range(3):
        found = compiled(*(tensor.to("vdev") for tensor in tensors))
        torch.testing.assert_close(found.cpu(), flex_attention(*tensors), atol=1e-4, rtol=1e-4)
"""


def test_a_card_gives_what_the_cpu_gives():
    torch.testing.assert_close(attention("vdev"), attention("cpu"), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("device", ["vdev", "cpu"])
@pytest.mark.filterwarnings("error:torch.compile. Inductor cannot compile")
def test_compiled(device):
    """With fullgraph=True, because nothing may keep Dynamo from tracing it, on any device."""
    with torch.no_grad():
        compiled = attention(device, torch.compile(flex_attention, fullgraph=True))
    torch.testing.assert_close(compiled, attention("cpu"), atol=1e-4, rtol=1e-4)


@pytest.mark.daily
def test_what_one_thread_has_compiled_is_not_run_by_four(run, script, tmp_path):
    """The kernel has a buffer for each thread. Inductor keeps it on disk for other processes."""
    program = script(COMPILES)
    for threads in ("1", "4"):
        run(
            [sys.executable, program],
            env={"OMP_NUM_THREADS": threads, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
            timeout=300,
        )


@pytest.mark.daily
@pytest.mark.filterwarnings("error:torch.compile. Inductor cannot compile")
def test_compiled_between_other_operators():
    def block(query, key, value):
        return flex_attention(query.relu() * 2, key, value, score_mod=biased).sin() + 1

    torch.manual_seed(0)
    tensors = torch.randn(3, 1, 2, LENGTH, 32).unbind()
    with torch.no_grad():
        found = torch.compile(block, fullgraph=True)(*(tensor.to("vdev") for tensor in tensors))
    torch.testing.assert_close(found.cpu(), block(*tensors), atol=1e-4, rtol=1e-4)


def test_autocast():
    torch.manual_seed(0)
    tensors = torch.randn(3, 1, 2, LENGTH, 32).unbind()
    with torch.autocast("vdev", dtype=torch.bfloat16):
        found = flex_attention(*(tensor.to("vdev") for tensor in tensors))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = flex_attention(*tensors)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found.cpu(), wanted)


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
