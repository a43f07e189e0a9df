"""Random numbers that are the same on both sides.

The generators of the card and of the CPU give different numbers for one seed. So the reference side's random
operators are recorded, and the same operators of the other side are run and then overwritten with what was
recorded. Draws are matched by their order within a call of a module. Dropout has two forms: the CPU
multiplies with a mask from ``bernoulli_``, and cards have ``native_dropout``. Each can be replayed from the
other, because both draw one mask.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from vccl.compare.operators import values_of
from vccl.compare.places import Place

_MASKS = ("aten::bernoulli_.float", "aten::native_dropout")
# The operators of both forms, forward and backward.
OF_DROPOUT = (*_MASKS, "aten::div_.Scalar", "aten::mul.Tensor", "aten::native_dropout_backward")
_Key = tuple[str, int, bool]


@dataclass
class Draw:
    """What one random operator has drawn."""

    name: str
    values: list[torch.Tensor]


@dataclass
class Draws:
    """The random numbers of a run, by the call of a module that drew them."""

    by_place: dict[_Key, list[Draw]] = field(default_factory=dict)

    def add(self, place: Place, name: str, values: list[torch.Tensor]) -> None:
        draws = self.by_place.setdefault((place.module, place.call, place.backward), [])
        draws.append(Draw(name, values))


def is_two_forms_of_dropout(names: set[str]) -> bool:
    """Returns whether operators that one side alone has called are the two forms of dropout."""
    return names.issuperset(_MASKS)


class Replay:
    """Writes recorded draws over those of a run. ``missing`` names the operators that found none."""

    def __init__(self, draws: Draws) -> None:
        self._left = {place: list(recorded) for place, recorded in draws.by_place.items()}
        self.missing: list[str] = []

    def overwrite(self, place: Place, function: Any, args: tuple, kwargs: dict, output: Any) -> None:
        """Overwrites what a random operator has just drawn with what was drawn at the same place."""
        left = self._left.get((place.module, place.call, place.backward), [])
        draw = left.pop(0) if left else None
        values = values_of(function, args, kwargs, output)
        name = function.name()
        if draw is not None and draw.name == name and _alike(values, draw.values):
            for value, recorded in zip(values, draw.values, strict=True):
                value.copy_(recorded)
        elif draw is not None and {draw.name, name} == set(_MASKS) and _write_mask(values, draw, args):
            pass
        else:
            self.missing.append(f"{name} in {place}")


def _alike(values: list[torch.Tensor], recorded: list[torch.Tensor]) -> bool:
    return [value.shape for value in values] == [value.shape for value in recorded]


def _write_mask(values: list[torch.Tensor], draw: Draw, args: tuple) -> bool:
    """Replays one form of dropout from the other. Returns False if the masks are not of one size."""
    mask = draw.values[-1]  # native_dropout returns (output, mask)
    if args[0].is_nested or mask.shape != values[-1].shape:
        return False
    values[-1].copy_(mask != 0)
    if len(values) == 2:
        kept = 1.0 - args[1]
        values[0].copy_(args[0] * values[1] / kept)
    return True
