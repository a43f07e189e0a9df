"""docs/operators.md, and what it says of the operators of training steps."""

from pathlib import Path

import pytest
import torch
from torch import nn

from vccl import _C
from vccl.operators_page import operators_by_reason, page

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_up_to_date():
    written = (ROOT / "docs/operators.md").read_text()
    assert written == page(), "run python -m vccl.operators_page"


def test_reasons():
    reasons = operators_by_reason()
    assert "nonzero" in reasons["has results whose shape depends on elements"]
    assert "_local_scalar_dense" in reasons["returns something other than tensors"] or any(
        "_local_scalar_dense" in names for names in reasons.values()
    )
    assert "resize_" in reasons["reshapes an argument"]
    for name in ("add", "addmm", "convolution", "native_layer_norm", "index", "sort"):
        assert not any(name in names for names in reasons.values()), name
    with pytest.raises(RuntimeError):
        _C._why_at_call("aten::no_such_operator", "")


def gpt():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.1)
    return nn.Sequential(nn.Embedding(50, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 50)), True


def resnet():
    def block(channels):
        return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())

    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 50)]
    return nn.Sequential(nn.Conv2d(3, 8, 3), block(8), nn.MaxPool2d(2), block(8), *head), False


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(50, 16), nn.LSTM(16, 32, num_layers=2, batch_first=True)
        self.head = nn.Linear(32, 50)

    def forward(self, x):
        return self.head(self.lstm(self.embedding(x))[0])


@pytest.mark.asynchronous
@pytest.mark.parametrize("model", [gpt, resnet, lambda: (Lstm(), True)], ids=["gpt", "resnet", "lstm"])
def test_nine_of_ten_operators_of_a_training_step_are_tasks(model):
    torch.manual_seed(0)
    net, takes_tokens = model()
    net.to("vdev")
    optimizer = torch.optim.AdamW(net.parameters())
    x = torch.randint(0, 50, (2, 7), device="vdev") if takes_tokens else torch.randn(2, 3, 16, 16).to("vdev")
    target = torch.randint(0, 50, (14,) if takes_tokens else (2,), device="vdev")

    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x).flatten(0, -2), target)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    for _ in range(2):
        step()
    before = _C._launch_counts()
    step()
    later = now = 0
    for name, (tasks, calls) in _C._launch_counts().items():
        tasks_before, calls_before = before.get(name, (0, 0))
        later += tasks - tasks_before
        now += calls - calls_before
    assert later > 20 and later >= 0.9 * (later + now), (later, now)
