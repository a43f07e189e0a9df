"""What a run has computed: the results of its operators, its modules, and the run as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vccl.compare.draws import Draws, Replay
from vccl.compare.operators import draws_numbers, has_subclass, has_values, shapes_of, tensors_in, values_of
from vccl.compare.places import Place, Places


@dataclass
class OperatorCall:
    """One call of an operator: its number in the run, its name, where it was called, and what it computed."""

    index: int
    name: str
    place: Place
    arguments: str
    values: list[torch.Tensor]
    random: bool = False


@dataclass
class ModuleCall:
    """One call of a module, and its output. ``index`` is the number of the operator that came next."""

    index: int
    module: str
    call: int
    values: list[torch.Tensor]


@dataclass
class Recording:
    """A run of a model on one side.

    ``results`` has the outputs, and the gradients, parameters and buffers after the run, by their names.
    """

    side: str
    device: str
    dtype: torch.dtype | None = None
    operators: list[OperatorCall] = field(default_factory=list)
    modules: list[ModuleCall] = field(default_factory=list)
    results: dict[str, torch.Tensor] = field(default_factory=dict)
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

    def move_to_host(self) -> None:
        """Copies all that was recorded to the CPU. This waits for the card."""
        calls: list[OperatorCall | ModuleCall] = [*self.operators, *self.modules]
        for call in calls:
            call.values = [value.cpu() for value in call.values]
        self.results = {name: value.cpu() for name, value in self.results.items()}
        for drawn in self.draws.by_place.values():
            for draw in drawn:
                draw.values = [value.cpu() for value in draw.values]


class Recorder(TorchDispatchMode):
    """Records every operator that is called while it is active.

    Results are kept as copies on their own device, made in stream order: the host waits for nothing that it
    would not wait for otherwise, so what depends on the order of streams still happens.
    """

    def __init__(self, recording: Recording, places: Places, replay: Replay | None = None) -> None:
        super().__init__()
        self.recording = recording
        self.places = places
        self.replay = replay
        places.module_ended = self._module_ended

    def _module_ended(self, path: str, call: int, output: Any) -> None:
        values = [_copy(value) for value in tensors_in(output)]
        self.recording.modules.append(ModuleCall(len(self.recording.operators), path, call, values))

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if has_subclass(types):  # it first makes of the call what its own tensors are to do
            return NotImplemented
        place = self.places.here()
        random = draws_numbers(function, args, kwargs)
        output = function(*args, **kwargs)
        if not has_values(function):
            return output
        if random and self.replay is not None:
            self.replay.overwrite(place, function, args, kwargs, output)
        values = [_copy(value) for value in values_of(function, args, kwargs, output)]
        if random:
            self.recording.draws.add(place, function.name(), values)
        operators = self.recording.operators
        arguments = shapes_of(args, kwargs)
        operators.append(OperatorCall(len(operators), function.name(), place, arguments, values, random))
        return output


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        copied = tensor.detach()
        return (copied if copied.layout == torch.strided else copied.to_dense()).clone()
