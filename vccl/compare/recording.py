"""The recording of a run: the results of its operators, of its modules, and of the run as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vccl.compare.collectives import groups_in, is_collective
from vccl.compare.draws import Draws, Replay
from vccl.compare.observer import Observer
from vccl.compare.operators import draws_numbers, shapes_of, tensors_in, values_of
from vccl.compare.parts import parts_of
from vccl.compare.places import Place, Places
from vccl.compare.precision import Precisions


@dataclass
class OperatorCall:
    """One call of an operator: its number in the run, its name, where it was called, and what it computed.

    ``precision`` is the narrowest dtype that its arguments and results have gone through, if any has.
    """

    index: int
    name: str
    place: Place
    arguments: str
    values: list[torch.Tensor]
    random: bool = False
    precision: torch.dtype | None = None


@dataclass
class ModuleCall:
    """One call of a module, and its output. ``index`` is the number of the operator that came next."""

    index: int
    module: str
    call: int
    values: list[torch.Tensor]
    precision: torch.dtype | None = None


@dataclass
class Recording:
    """A run of a model on one side.

    ``results`` has the outputs, and the gradients, parameters and buffers after the run, by their names, and
    ``precisions`` the narrowest dtypes they have gone through. ``left_out`` names those that nobody can read,
    and ``groups`` the process groups of the run's collectives.
    """

    side: str
    device: str
    dtype: torch.dtype | None = None
    operators: list[OperatorCall] = field(default_factory=list)
    modules: list[ModuleCall] = field(default_factory=list)
    results: dict[str, torch.Tensor] = field(default_factory=dict)
    precisions: dict[str, torch.dtype | None] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    draws: Draws = field(default_factory=Draws)
    without_draw: list[str] = field(default_factory=list)

    def save(self, path: str | Path) -> None:
        """Writes the recording to a file, for a comparison with a run of another process."""
        torch.save(self, path)

    @staticmethod
    def load(path: str | Path) -> Recording:
        """Returns a recording from a file. The file is a pickle, so it must come from someone you trust.

        Raises:
            TypeError: the file holds something else.
        """
        recording = torch.load(path, weights_only=False)
        if not isinstance(recording, Recording):
            raise TypeError(f"{path} holds a {type(recording).__name__}, and not a recording of vccl.compare")
        return recording

    def keep_results(self, tensors: dict[str, torch.Tensor], precisions: Precisions) -> None:
        """Keeps copies of what a run leaves."""
        for name, tensor in tensors.items():
            parts = parts_of(tensor)
            if not parts and not (tensor.is_nested and tensor.layout == torch.strided):  # it may be empty
                self.left_out.append(f"{name} ({type(tensor).__name__} on {tensor.device})")
            for i, part in enumerate(parts):
                where = f"{name}, part {i}" if len(parts) > 1 else name
                self.results[where] = part.clone()
                self.precisions[where] = precisions.of(tensor)

    def move_to_host(self) -> None:
        """Copies all that was recorded to the CPU. This waits for the card."""
        calls: list[OperatorCall | ModuleCall] = [*self.operators, *self.modules]
        for call in calls:
            call.values = [value.cpu() for value in call.values]
        self.results = {name: value.cpu() for name, value in self.results.items()}
        for drawn in self.draws.by_place.values():
            for draw in drawn:
                draw.values = [value.cpu() for value in draw.values]


class Recorder(Observer):
    """Records every operator that is called while it is active.

    Results are kept as copies on their own device, made in stream order: the host waits for nothing that it
    would not wait for otherwise, so what depends on the order of streams still happens.
    """

    def __init__(self, recording: Recording, places: Places, replay: Replay | None = None) -> None:
        super().__init__()
        self.recording = recording
        self.places = places
        self.replay = replay
        self.precisions = Precisions()
        places.module_ended = self._module_ended

    def _module_ended(self, path: str, call: int, output: Any) -> None:
        values = [part.clone() for value in tensors_in(output) for part in parts_of(value)]
        precision = self.precisions.of(output)
        self.recording.modules.append(
            ModuleCall(len(self.recording.operators), path, call, values, precision)
        )

    def observed(self, function: Any, args: tuple, kwargs: dict) -> Any:
        place = self.places.here()
        random = draws_numbers(function, args, kwargs)
        has_values = self.has_values(function, args)
        output = function(*args, **kwargs)
        precision = self.precisions.note(function, args, kwargs, output)
        if is_collective(function):
            names = groups_in(function, args, kwargs)
            self.recording.groups += [name for name in names if name not in self.recording.groups]
        if not has_values:
            return output
        if random and self.replay is not None:
            self.replay.overwrite(place, function, args, kwargs, output)
        values = [value.clone() for value in values_of(function, args, kwargs, output)]
        name, arguments = function.name(), shapes_of(args, kwargs)
        if random:
            self.recording.draws.add(place, name, values)
        operators = self.recording.operators
        operators.append(OperatorCall(len(operators), name, place, arguments, values, random, precision))
        return output
