"""Finds the operator at fault, by running each with the same arguments on both devices."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from vccl.compare.arguments import copies_on, to_plain
from vccl.compare.collectives import is_collective
from vccl.compare.differences import first_difference
from vccl.compare.draws import Replay
from vccl.compare.observer import Observer
from vccl.compare.operators import draws_numbers, shapes_of, values_of
from vccl.compare.places import Place, Places
from vccl.compare.precision import narrowest_of
from vccl.compare.recording import OperatorCall
from vccl.compare.tolerance import Difference, Tolerance


class Culprit:
    """An operator that differs although its arguments are the same, with the arguments."""

    def __init__(self, call: OperatorCall, difference: Difference, plain: dict[str, Any]) -> None:
        self.call = call
        self.difference = difference
        self.plain = plain


class Isolation(Observer):
    """Runs every operator a second time on another device, until results differ or ``last`` is reached.

    Args:
        places: knows where the program is.
        replay: the random numbers of the first run, so that this one takes the same way.
        from_type: the type of the device that the program runs on.
        device: where operators run the second time; None: nowhere.
        last: the number of the operator whose arguments are kept in ``at_last``; nothing is judged after it.
        tolerance: decides what differs.
    """

    def __init__(
        self,
        places: Places,
        replay: Replay | None,
        from_type: str,
        device: torch.device | None,
        last: int,
        tolerance: Tolerance,
    ) -> None:
        super().__init__()
        self.places = places
        self.replay = replay
        self.from_type = from_type
        self.device = device
        self.last = last
        self.tolerance = tolerance
        self.culprit: Culprit | None = None
        self.at_last: dict[str, Any] | None = None
        self._index = 0

    def observed(self, function: Any, args: tuple, kwargs: dict) -> Any:
        place = self.places.here()
        random = draws_numbers(function, args, kwargs)
        judged = self.culprit is None and self._index <= self.last and self.has_values(function, args)
        plain = kept_arguments(function, args, kwargs) if judged else None
        second = None if random or plain is None else self._second_run(function, args, kwargs)
        output = function(*args, **kwargs)
        if random and self.replay is not None:  # also of what is not judged, as other ranks may get it
            self.replay.overwrite(place, function, args, kwargs, output)
        if judged:
            if self._index == self.last:
                self.at_last = plain
            if second is not None and plain is not None:
                self._judge(function, args, kwargs, output, second, place, plain)
            self._index += 1
        return output

    def _second_run(self, function: Any, args: tuple, kwargs: dict) -> list[torch.Tensor] | None:
        """Returns what the operator computes on the other device, or None if it does not run there."""
        if self.device is None or is_collective(function):  # other ranks would not take part
            return None
        if all(device.type != self.from_type for device in _devices((args, kwargs))):
            return None
        moved_args, moved_kwargs = copies_on((args, kwargs), self.device, self.from_type)
        try:
            output = function(*moved_args, **moved_kwargs)
        except RuntimeError:
            return None  # an operator that only one of the devices has
        return [value.cpu() for value in values_of(function, moved_args, moved_kwargs, output)]

    def _judge(
        self,
        function: Any,
        args: tuple,
        kwargs: dict,
        output: Any,
        second: list[torch.Tensor],
        place: Place,
        plain: dict[str, Any],
    ) -> None:
        values = [value.detach().cpu() for value in values_of(function, args, kwargs, output)]
        carried = [narrowest_of((args, kwargs, values))]
        found = first_difference(values, second, self.tolerance, carried)
        if found is not None:
            call = OperatorCall(self._index, function.name(), place, shapes_of(args, kwargs), values)
            self.culprit = Culprit(call, found[1], plain)


def _devices(tree: Any) -> list[torch.device]:
    """Returns the devices that arguments are on or name."""
    leaves = [leaf.device if isinstance(leaf, torch.Tensor) else leaf for leaf in tree_leaves(tree)]
    return [leaf for leaf in leaves if isinstance(leaf, torch.device)]


def kept_arguments(function: Any, args: tuple, kwargs: dict) -> dict[str, Any] | None:
    """Returns a call in the form of a dump, or None if an argument cannot be written to a file."""
    devices = _devices((args, kwargs))
    on_card = any(device.type != "cpu" for device in devices)
    try:
        return {
            "operator": function.name(),
            "args": to_plain(list(args), on_card),
            "kwargs": {name: to_plain(value, on_card) for name, value in kwargs.items()},
        }
    except TypeError:
        return None
