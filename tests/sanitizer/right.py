"""What right programs have in common: their register, a model, and the check that nothing is reported."""

from collections.abc import Callable

import pytest
import torch
from pairs import brief, reports_of
from torch import nn

Play = Callable[[], None]
RIGHT: list[tuple[Play, int]] = []
WIDTH, STEPS = 16, 3


def right(ranks: int = 1) -> Callable[[Play], Play]:
    """Registers a right program for so many ranks."""

    def register(play: Play) -> Play:
        RIGHT.append((play, ranks))
        return play

    return register


def of_ranks(ranks: int) -> list:
    """Returns the registered programs for so many ranks, as parameters of a test."""
    return [pytest.param(play, id=play.__name__) for play, size in RIGHT if size == ranks]


def assert_nothing_is_reported(play: Play) -> None:
    reports = reports_of(lambda _: play(), False)
    assert not reports, "false alarm:\n" + "\n".join(map(brief, reports))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def make_model(blocks: int = 3, device: str = "vdev") -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(Block() for _ in range(blocks))).to(device)


def batch(step: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, WIDTH, generator=generator)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS) -> None:
    """Trains as scripts do, with batches from pinned memory and a loss that is read in each step."""
    for step in range(steps):
        inputs = batch(step).pin_memory().to("vdev", non_blocking=True)
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        assert loss.item() >= 0


def adam(model: nn.Module, **options: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, **options)
