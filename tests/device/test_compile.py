"""torch.compile on the cards: what Inductor cannot compile runs eagerly, and says so once."""

import pytest

MODEL = """
import warnings, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to("vdev")
x = torch.randn(3, 4, device="vdev")
def told(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, [str(w.message) for w in caught if "vdev" in str(w.message)]
def gradients(call):
    model.zero_grad()
    call(x).square().sum().backward()
    return [p.grad.clone() for p in model.parameters()]
expected, expected_gradients = model(x), gradients(model)
"""


def test_inductor_runs_eagerly_and_says_so_once(run_python):
    result = run_python(
        MODEL + "compiled = torch.compile(model)\n"
        "actual, texts = told(lambda: compiled(x))\n"
        "assert torch.equal(actual, expected)\n"
        "assert len(texts) == 1 and 'eagerly' in texts[0] and 'aot_eager' in texts[0], texts\n"
        "assert all(map(torch.equal, gradients(compiled), expected_gradients))\n"
        # Nothing goes in: only what is made inside shows the card.
        "made = torch.compile(lambda: torch.ones(3, device='vdev') * 2, mode='reduce-overhead')\n"
        "actual, texts = told(made)\n"
        "assert actual.tolist() == [2.0] * 3 and texts == []\n"
    )
    assert "KeyError" not in result.stderr


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_backends_without_code_generation(run_python, backend):
    run_python(
        MODEL + f"compiled = torch.compile(model, backend={backend!r}, fullgraph=True)\n"
        "actual, texts = told(lambda: compiled(x))\n"
        "torch.testing.assert_close(actual, expected)\n"
        "assert texts == []\n"
        "for actual, wanted in zip(gradients(compiled), expected_gradients):\n"
        "    torch.testing.assert_close(actual, wanted)\n"
    )


def test_graphs_without_a_card_go_to_inductor(run_python):
    run_python(
        "import torch\n"
        "from torch._inductor import compile_fx\n"
        "seen = []\n"
        "def compiler(model, inputs, **options):\n"
        "    seen.append(model)\n"
        "    return model.forward\n"
        "compile_fx.compile_fx = compiler\n"
        "assert torch.compile(lambda x: x + 1)(torch.ones(2)).tolist() == [2.0, 2.0]\n"
        "assert len(seen) == 1\n"
    )
