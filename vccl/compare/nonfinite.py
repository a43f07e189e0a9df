"""The operator that first makes NaN or infinity out of finite numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from vccl.compare.collectives import is_collective
from vccl.compare.observer import Observer, refuse_capture
from vccl.compare.operators import shapes_of, tensors_in, values_of, written_arguments
from vccl.compare.parts import addresses_of, parts_of
from vccl.compare.places import Place, Places, modules_of, plain_path

# Operators that only put a number where the program wants it, as in masks.
_FILLS = tuple(
    f"aten::{name}"
    for name in ("fill", "full", "new_full", "masked_fill", "index_fill", "constant_pad_nd", "scalar_tensor")
)


@dataclass(frozen=True)
class NonFinite:
    """The first operator with NaN or infinity among its results.

    ``cause`` is "made" if no argument held the same, "read" if an argument held it before any operator had
    made it, and "received" if a collective brought it. ``source`` names the parameter or buffer it was read
    from, if it was one. ``what`` is "NaN" or "infinity", and ``index`` the number of the operator in the run.
    """

    cause: str
    what: str
    operator: str
    place: Place
    arguments: str
    index: int
    count: int
    total: int
    source: str = ""
    of_infinity: bool = False  # an argument of the operator that made NaN held infinity

    @property
    def module(self) -> str:
        return self.place.module

    @property
    def order(self) -> tuple[int, int]:
        """Places it in the order of the run. What a collective brought was made by another rank before."""
        return (int(self.cause == "received"), self.index)

    def __str__(self) -> str:
        if self.cause == "made":
            of = "infinity" if self.of_infinity else "finite arguments"
            head = f"{self.operator} made {self.what} of {of}"
        elif self.cause == "received":
            head = f"{self.operator} read {self.what} that a collective had brought"
        else:
            head = (
                f"{self.operator} read {self.what} from {self.source or 'an argument that nothing here made'}"
            )
        line = f"\n  called at {self.place.line}" if self.place.line else ""
        return (
            f"{head}, in {self.place}{line}\n  arguments {self.arguments}"
            f"\n  {self.count} of {self.total} elements of the result"
        )


class Tracker(Observer):
    """Looks at the results of every operator, until ``first`` is found."""

    looks_into_attention = (
        False  # where a whole row is masked, it makes NaN on the way that it does not return
    )

    def __init__(self, places: Places, model: nn.Module | None, raise_error: bool) -> None:
        super().__init__()
        self.first: NonFinite | None = None
        self.places = places
        self.raise_error = raise_error
        self.model = model
        self._index = 0
        self._received: set[int] = set()  # addresses of memory that collectives have written

    def observed(self, function: Any, args: tuple, kwargs: dict) -> Any:
        place = self.places.here()
        if self.first is not None:
            return function(*args, **kwargs)
        if is_collective(function):
            # What it brings is not there when the call returns. It is seen when an operator reads it.
            output = function(*args, **kwargs)
            self._received |= _memory(tensors_in((args, kwargs, output)))
            return output
        if not self.has_values(function, args):
            return function(*args, **kwargs)
        refuse_capture("track_nonfinite", "waits for every operator to look at its results")
        written = written_arguments(function, args, kwargs)
        before = {id(tensor): _state(tensor) for tensor in written}
        output = function(*args, **kwargs)
        self._index += 1
        results = [t for t in values_of(function, args, kwargs, output) if _state(t)]
        if results:
            self._found(function, args, kwargs, place, results[0], before)
        return output

    def _found(
        self,
        function: Any,
        args: tuple,
        kwargs: dict,
        place: Place,
        result: torch.Tensor,
        before: dict[int, str],
    ) -> None:
        """Decides whether a result that is not finite is where the trouble began."""
        what = _state(result)
        arguments = tensors_in((args, kwargs))
        states = [before[id(t)] if id(t) in before else _state(t) for t in arguments]
        sources = [t for t, state in zip(arguments, states, strict=True) if state == what]
        scalars = [x for x in tree_leaves((args, kwargs)) if isinstance(x, float)]
        if not sources:
            if any(not math.isfinite(x) for x in scalars) and function.name().startswith(_FILLS):
                return
            cause, source = "made", ""
        else:
            cause, source = self._origin(sources)
            # Infinity that the program itself brings is usual, in masks of attention for example.
            if what == "infinity" and cause == "read" and not source.startswith("parameter"):
                return
        bad = ~torch.isfinite(result)
        shapes = shapes_of(args, kwargs)
        self.first = NonFinite(
            cause,
            what,
            function.name(),
            place,
            shapes,
            self._index,
            int(bad.sum()),
            result.numel(),
            source,
            of_infinity=cause == "made" and "infinity" in states,
        )
        if self.raise_error:
            raise FloatingPointError(str(self.first))

    def _origin(self, sources: list[torch.Tensor]) -> tuple[str, str]:
        """Returns the cause, and the name of the parameter or buffer that holds one of these tensors."""
        held = _memory(sources)
        if self.model is not None:
            for name, parameter in self.model.named_parameters():
                if addresses_of(parameter) & held:
                    return "read", f"parameter {plain_path(name)}"
            for name, buffer in self.model.named_buffers():
                if addresses_of(buffer) & held:
                    return "read", f"buffer {plain_path(name)}"
        return ("received" if held & self._received else "read"), ""


def _memory(tensors: list[torch.Tensor]) -> set[int]:
    return {address for tensor in tensors for address in addresses_of(tensor)}


def _state(tensor: torch.Tensor) -> str:
    """Returns "NaN" or "infinity" if a tensor holds one, else "". Waits for the card."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.numel() == 0:
        return ""
    found = ""
    for values in parts_of(tensor):
        if values.element_size() == 1:  # most operators do not know float8
            values = values.to(torch.float32)
        if not bool(torch.isfinite(values).all()):
            found = "infinity"
            if bool(torch.isnan(values).any()):
                return "NaN"
    return found


@contextmanager
def track_nonfinite(model: nn.Module | None = None, *, raise_error: bool = False) -> Iterator[Tracker]:
    """Watches the block for the first operator that makes NaN or infinity out of finite numbers.

    Gives a tracker: its ``first`` is a ``NonFinite``, or None. Infinities that the program writes into masks,
    or brings in its inputs, do not count, but NaN that comes of them does. The host waits for the card at
    every operator until something is found.

    Args:
        model: the model whose modules and parameters are to be named.
        raise_error: raise FloatingPointError at the operator.
    """
    places = Places(modules_of(model) if model is not None else [])
    with places.watching(), Tracker(places, model, raise_error) as tracker:
        yield tracker
