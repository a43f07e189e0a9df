"""Compares a differentiable collective, and its gradient, with one process that has every rank's input."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Outputs = list[torch.Tensor] | None


@dataclasses.dataclass
class Case:
    """One collective.

    Attributes:
        call: ``call(x, rank, size)`` on every rank: the outputs, in a list.
        reference: ``reference(xs)``: for each rank its outputs, or None where they are not defined.
        rows: ``rows(rank, size)``: how many rows of three a rank's input has.
        differentiable: whether its gradient is defined.
    """

    call: Callable[[torch.Tensor, int, int], list[torch.Tensor]]
    reference: Callable[[list[torch.Tensor]], list[Outputs]]
    rows: Callable[[int, int], int] = lambda rank, size: 2 * size
    differentiable: bool = True


def numbers(rank: int, shape: Any, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def loss(outputs: list[torch.Tensor], rank: int) -> torch.Tensor:
    """Weights every element of every rank's outputs differently."""
    weighted = [
        (output * numbers(rank, output.shape, 50 + i).to(output.device)).sum()
        for i, output in enumerate(outputs)
    ]
    return torch.stack(weighted).sum()


def close(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    torch.testing.assert_close(
        actual.detach().cpu(), expected.detach(), rtol=1e-12, atol=1e-12, msg=lambda text: f"{what}: {text}"
    )


def check(case: Case, rank: int, size: int, device: str, name: str, call: Callable | None = None) -> None:
    """Runs the case, or `call` in its place, on this rank, and compares."""
    xs = [numbers(other, (case.rows(other, size), 3), 0) for other in range(size)]
    mine = xs[rank].to(device).requires_grad_(case.differentiable)
    for x in xs:
        x.requires_grad_(case.differentiable)
    outputs = (call or case.call)(mine, rank, size)
    expected = case.reference(xs)
    if expected[rank] is not None:
        assert len(outputs) == len(expected[rank])
        for output, reference in zip(outputs, expected[rank], strict=True):
            assert output.device.type == device
            close(output, reference, f"{name}, output of rank {rank}")
    if case.differentiable:
        loss(outputs, rank).backward()
        total = [loss(theirs, other) for other, theirs in enumerate(expected) if theirs is not None]
        torch.stack(total).sum().backward()
        assert mine.grad is not None, name
        gradient = xs[rank].grad if xs[rank].grad is not None else torch.zeros_like(xs[rank])
        close(mine.grad, gradient, f"{name}, gradient of rank {rank}")
    dist.barrier()


def chunks(x: torch.Tensor, size: int) -> list[torch.Tensor]:
    return list(x.chunk(size))


def split(source: int, destination: int) -> int:
    """How many rows one rank sends to another: uneven, and sometimes none."""
    return (source + 2 * destination) % 3


def sent_by(rank: int, size: int) -> list[int]:
    return [split(rank, other) for other in range(size)]


def received_by(rank: int, size: int) -> list[int]:
    return [split(other, rank) for other in range(size)]


def exchanged(xs: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """What all_to_all with these splits makes of every rank's input, in parts."""
    size = len(xs)
    parts = [x.split(sent_by(rank, size)) for rank, x in enumerate(xs)]
    return [[parts[source][rank] for source in range(size)] for rank in range(size)]
