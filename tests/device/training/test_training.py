"""Training on one card: the same parameters, to the bit, as on the CPU."""

import copy
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

STEPS = 3


class Classifier(nn.Module):
    """A recurrent or transformer body with a linear head over its last position."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.body = body
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out = self.body(self.embedding(tokens))
        out = out[0] if isinstance(out, tuple) else out
        return self.head(out[:, -1])


def mlp() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    model = nn.Sequential(
        nn.Linear(20, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
    )
    return model, lambda: torch.randn(16, 20)


def cnn() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, groups=2, bias=False),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.ConvTranspose2d(16, 8, 2, stride=2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    return model, lambda: torch.randn(16, 3, 16, 16)


def transformer() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    return Classifier(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), 32), lambda: torch.randint(
        50, (16, 12)
    )


def rnn() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    return Classifier(nn.RNN(32, 24, num_layers=2, batch_first=True), 24), lambda: torch.randint(50, (16, 7))


def lstm() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    return Classifier(nn.LSTM(32, 24, num_layers=2, batch_first=True), 24), lambda: torch.randint(50, (16, 7))


def gru() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    return Classifier(nn.GRU(32, 24, bidirectional=True, batch_first=True), 48), lambda: torch.randint(
        50, (16, 7)
    )


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False),
    "sgd-foreach": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True),
    "sgd-fused": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=False),
    "adamw-foreach": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=True),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=1e-2),
    "adamw-capturable": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, capturable=True),
}


def train(model: nn.Module, batches: list, optimizer: str, device: str, clip: bool = False) -> nn.Module:
    model = copy.deepcopy(model).to(device)
    step = OPTIMIZERS[optimizer](list(model.parameters()))
    for inputs, labels in batches:
        step.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        step.step()
    return model


def example(make: Callable) -> tuple[nn.Module, list]:
    torch.manual_seed(1)
    model, inputs = make()
    return model, [(inputs(), torch.randint(10, (16,))) for _ in range(STEPS)]


def assert_equal_models(expected: nn.Module, actual: nn.Module, **tolerance: float) -> None:
    tolerance = tolerance or {"rtol": 0, "atol": 0}
    for (name, left), right in zip(expected.state_dict().items(), actual.state_dict().values(), strict=True):
        assert right.device.type == "vdev"
        torch.testing.assert_close(
            right.cpu(), left, msg=lambda text, name=name: f"{name}: {text}", **tolerance
        )


@pytest.mark.parametrize("make", [mlp, cnn, transformer])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_same_bits_as_cpu(make, optimizer):
    model, batches = example(make)
    assert_equal_models(train(model, batches, optimizer, "cpu"), train(model, batches, optimizer, "vdev"))


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if "capturable" not in name])
def test_optimizers(optimizer):
    model, batches = example(mlp)
    assert_equal_models(
        train(model, batches, optimizer, "cpu", clip=True),
        train(model, batches, optimizer, "vdev", clip=True),
    )


@pytest.mark.parametrize("make", [rnn, lstm, gru])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_recurrent(make, optimizer):
    model, batches = example(make)
    expected = train(model, batches, optimizer, "cpu")
    actual = train(model, batches, optimizer, "vdev")
    assert_equal_models(expected, actual)


def test_more_than_one_card_at_a_time():
    """Each card in a thread of its own, each with its own current card and stream."""
    model, batches = example(transformer)
    expected = train(model, batches, "adamw", "cpu")
    results: dict[int, nn.Module] = {}

    def work(card: int) -> None:
        torch.vdev.set_device(card)
        with torch.vdev.stream(torch.vdev.Stream()):
            results[card] = train(model, batches, "adamw", f"vdev:{card}")
            torch.vdev.synchronize()

    threads = [threading.Thread(target=work, args=(card,)) for card in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    for card, model in results.items():
        assert next(model.parameters()).device == torch.device("vdev", card)
        assert_equal_models(expected, model)
    assert len(results) == 4


def test_model_over_two_cards():
    torch.manual_seed(2)
    first, second = nn.Linear(8, 8), nn.Linear(8, 4)
    inputs, labels = torch.randn(5, 8), torch.randint(4, (5,))

    def gradients(device_1: str, device_2: str) -> list[torch.Tensor]:
        one, two = copy.deepcopy(first).to(device_1), copy.deepcopy(second).to(device_2)
        out = two(one(inputs.to(device_1)).relu().to(device_2))
        nn.functional.cross_entropy(out, labels.to(device_2)).backward()
        return [p.grad for p in (*one.parameters(), *two.parameters())]

    for expected, actual in zip(gradients("cpu", "cpu"), gradients("vdev:0", "vdev:1"), strict=True):
        assert torch.equal(expected, actual.cpu())


def test_optimizer_over_two_cards():
    """One list of parameters that lie on two cards: the foreach forms split it."""
    parameters = [torch.ones(3, device="vdev:0"), torch.ones(3, device="vdev:1")]
    out = torch._foreach_add(parameters, 1.0)
    assert [x.device.index for x in out] == [0, 1]
    assert all(torch.equal(x.cpu(), torch.full((3,), 2.0)) for x in out)
    torch._foreach_mul_(parameters, [torch.full((3,), 3.0, device=p.device) for p in parameters])
    assert all(torch.equal(x.cpu(), torch.full((3,), 3.0)) for x in parameters)


def test_checkpoint(tmp_path):
    model, batches = example(mlp)
    trained = train(model, batches, "adamw", "vdev")
    torch.save(trained.state_dict(), tmp_path / "model.pt")
    again = copy.deepcopy(model)
    again.load_state_dict(torch.load(tmp_path / "model.pt", map_location="cpu"))
    assert_equal_models(again, trained)
    moved = torch.load(tmp_path / "model.pt", map_location="vdev:2")
    assert {x.device for x in moved.values()} == {torch.device("vdev:2")}


def test_activation_checkpointing_repeats_dropout():
    model = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.5), nn.Linear(32, 1)).to("vdev")
    inputs = torch.randn(64, 32, device="vdev")
    gradients = []
    for checkpointed in (False, True):
        model.zero_grad()
        torch.vdev.manual_seed(3)
        if checkpointed:
            out = torch.utils.checkpoint.checkpoint(model, inputs, use_reentrant=False)
        else:
            out = model(inputs)
        out.sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for left, right in zip(*gradients, strict=True):
        assert torch.equal(left.cpu(), right.cpu())


@pytest.mark.daily
@pytest.mark.parametrize("end", ["pass", "raise SystemExit(0)", "import gc; gc.disable()"])
def test_a_process_may_end_right_after_backward(run_python, end):
    """The device threads' last references to Python objects go before the interpreter does."""
    for _ in range(3):
        run_python(
            "import torch, vccl\n"
            "for card in (0, 3):\n"
            "    values = torch.randn(3, device=f'vdev:{card}', requires_grad=True)\n"
            "    (values * 2).sum().backward()\n" + end
        )


THREADS = """
import torch

class AskInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1
    @staticmethod
    def backward(ctx, gradient):
        torch.get_num_threads()  # with the first call, a thread of autograd gets its number for good
        return gradient

torch.set_num_threads({first})
x = torch.ones(4, device="vdev", requires_grad=True)
AskInBackward.apply(x).sum().backward()
torch.set_num_threads({then})
torch.manual_seed(0)
inputs = torch.randn(6, 2, 3), torch.randn(2, 3), torch.randn(2, 3)
gradient = torch.randn(6, 2, 3)

def gradients(device):
    x, weight, bias = (value.to(device).requires_grad_() for value in inputs)
    result = torch.nn.functional.layer_norm(x, (2, 3), weight, bias)
    return [value.cpu() for value in torch.autograd.grad(result, (x, weight, bias), gradient.to(device))]

on_card = gradients("vdev")
assert all(map(torch.equal, on_card, gradients("cpu")))
torch.set_num_threads({first})
assert not all(map(torch.equal, on_card, gradients("cpu"))), "the number of threads makes no difference here"
"""


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2)])
def test_a_backward_has_the_programs_number_of_threads(run_python, first, then):
    """The gradients of layer norm's parameters are added up by threads, so their bits tell the number."""
    run_python(THREADS.format(first=first, then=then))
