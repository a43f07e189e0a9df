"""Defines what ``vccl.bench steps`` measures: training steps, and calls of small operators.

A workload of a given name computes the same on every device, from the same weights and the same data.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

READ_SELDOM = 10  # steps between two reads of the loss, in the variant that reads it seldom
LAUNCHES = 20  # calls between two synchronisations, so that no queue gets long


class Workload(ABC):
    """Holds a computation on one device. A round makes some of its steps, and is what the clock measures."""

    def __init__(self, device: torch.device, small: bool) -> None:
        self.device = device
        self.small = small

    @abstractmethod
    def run(self, steps: int) -> None:
        """Makes so many steps. Returns when the host can read their results, unless the class says more."""

    @abstractmethod
    def results(self) -> torch.Tensor:
        """Returns all that the steps have computed so far, on the CPU, for a comparison bit by bit."""

    def settle(self) -> None:
        """Waits for the device. The clock does not measure it."""
        synchronize(self.device)


def current_card() -> torch.device:
    """Returns the cards' device without an index, which stands for the current card."""
    card = torch.accelerator.current_accelerator()
    assert card is not None
    return card


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@dataclass(frozen=True)
class Lesson:
    """Holds a model, and a batch with what the model should answer."""

    model: nn.Module
    input: torch.Tensor
    target: torch.Tensor


class Training(Workload):
    """Trains a model with AdamW on one batch, and reads the loss every `period` steps."""

    def __init__(
        self, make: Callable[[bool], Lesson], period: int, device: torch.device, small: bool
    ) -> None:
        super().__init__(device, small)
        torch.manual_seed(0)
        lesson = make(small)
        self.model = lesson.model.to(device)
        self.input, self.target = lesson.input.to(device), lesson.target.to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.period = period
        self.made = 0
        self.losses: list[float] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        synchronize(self.device)

    def step(self) -> None:
        """Makes one step. It has not come to its end yet if the loss is not read."""
        self.optimizer.zero_grad()
        output = self.model(self.input)
        loss = functional.cross_entropy(output.flatten(0, -2), self.target.flatten())
        loss.backward()
        self.optimizer.step()
        self.made += 1
        if self.made % self.period == 0:
            self.losses.append(loss.item())

    def results(self) -> torch.Tensor:
        weights = [parameter.detach().cpu().double().sum() for parameter in self.model.parameters()]
        return torch.cat([torch.tensor(self.losses, dtype=torch.float64), torch.stack(weights)])


class TinyOperators(Workload):
    """Calls 180 operators on `size` elements, one after another, and reads one number."""

    def __init__(self, size: int, device: torch.device, small: bool) -> None:
        super().__init__(device, small)
        self.start = torch.linspace(-1, 1, size).to(device)
        self.factor = torch.full((size,), 0.75).to(device)
        self.sums: list[float] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            value = self.start
            for _ in range(60):
                value = (value * self.factor + self.start).tanh()
            self.sums.append(value.sum().item())

    def results(self) -> torch.Tensor:
        return torch.tensor(self.sums, dtype=torch.float64)


class Foreach(Workload):
    """Calls ``_foreach_add_`` on 100 tensors of 64 elements."""

    def __init__(self, device: torch.device, small: bool) -> None:
        super().__init__(device, small)
        self.tensors = [torch.full((64,), float(number)).to(device) for number in range(100)]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            torch._foreach_add_(self.tensors, 1.0)
            synchronize(self.device)

    def results(self) -> torch.Tensor:
        return torch.stack(self.tensors).cpu()


class Launches(Workload):
    """Calls a small operator. A step returns when the host could call the next one.

    The steps of a round are few, and settle() empties the queue before the next round.
    """

    def __init__(self, in_place: bool, device: torch.device, small: bool) -> None:
        super().__init__(device, small)
        self.in_place = in_place
        self.value = torch.zeros(64).to(device)
        self.increment = torch.ones(64).to(device)

    def run(self, steps: int) -> None:
        value, increment = self.value, self.increment
        if self.in_place:
            for _ in range(steps):
                value.add_(increment)
        else:
            for _ in range(steps):
                value = value + increment
        self.value = value

    def results(self) -> torch.Tensor:
        return self.value.cpu()


class Block(nn.Module):
    """Is a layer of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.between = nn.LayerNorm(width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        parts = self.query_key_value(self.before(input)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        state = input + self.out(mixed.transpose(1, 2).flatten(2))
        return state + self.wide(self.between(state))


class Transformer(nn.Module):
    """Is a GPT without dropout, which a card rounds in another way than the CPU does."""

    def __init__(self, width: int, layers: int, words: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(layers)))
        self.head = nn.Linear(width, words)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        # One row a word: a linear layer returns a view of rows otherwise, of which FSDP2 warns.
        return self.head(self.blocks(self.embedding(input) + self.position).flatten(0, 1))


def transformer(width: int, small: bool) -> Lesson:
    if small:
        width = width // 16
    layers, words, length, batch = (1, 16, 4, 2) if small else (2, 512, 64, 2)
    text = torch.randint(words, (batch, length + 1))
    return Lesson(Transformer(width, layers, words, length), text[:, :-1], text[:, 1:])


class Residual(nn.Module):
    """Adds what two convolutions give to the input."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.path = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.path(input) + self.shortcut(input))


def convolutional(small: bool) -> Lesson:
    width, batch, side = (4, 2, 8) if small else (16, 8, 32)
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        Residual(width, width),
        Residual(width, 2 * width),
        Residual(2 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )
    return Lesson(model, torch.randn(batch, 3, side, side), torch.randint(10, (batch,)))


def perceptron(small: bool) -> Lesson:
    width, batch = (8, 4) if small else (512, 64)
    layers = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    return Lesson(model, torch.randn(batch, width), torch.randint(10, (batch,)))


class Recurrent(nn.Module):
    """Puts a linear layer behind an LSTM or a GRU."""

    def __init__(self, kind: type[nn.RNNBase], width: int) -> None:
        super().__init__()
        # The constructors of the kinds take other keywords than that of the class above them.
        self.states = kind(width, width, num_layers=2, batch_first=True)  # type: ignore[call-arg, arg-type]
        self.head = nn.Linear(width, 10)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.head(self.states(input)[0])


def recurrent(kind: type[nn.RNNBase], small: bool) -> Lesson:
    width, batch, length = (8, 2, 3) if small else (256, 16, 32)
    return Lesson(
        Recurrent(kind, width), torch.randn(batch, length, width), torch.randint(10, (batch, length))
    )


LESSONS: dict[str, Callable[[bool], Lesson]] = {
    "transformer-256": lambda small: transformer(256, small),
    "transformer-512": lambda small: transformer(512, small),
    "conv": convolutional,
    "mlp": perceptron,
    "lstm": lambda small: recurrent(nn.LSTM, small),
    "gru": lambda small: recurrent(nn.GRU, small),
}
