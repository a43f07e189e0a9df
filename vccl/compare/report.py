"""The result of a comparison, as a text and as fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vccl.compare.differences import Differences
from vccl.compare.dump import write_dump
from vccl.compare.isolation import Culprit


@dataclass
class Report:
    """The result of ``compare``. ``str(report)`` tells it, and ``report.same`` is true if nothing differs.

    ``module`` and ``operator`` are the path and the name of the first difference, and "" if nothing differs.
    The operator is the first whose results differ with the same arguments on both devices. If there is none,
    it is the first operator whose results differ in the two runs. ``rounded`` has the differences in narrow
    dtypes that are too small to be more than rounding, where every operator does the same on both devices.
    """

    sides: tuple[str, str]
    differences: Differences
    culprit: Culprit | None = None
    random: list[str] = field(default_factory=list)
    arguments: dict[str, Any] | None = None
    rounded: Differences | None = None  # what is beyond the tolerance, but only rounding of narrow dtypes
    left_out: list[str] = field(default_factory=list)  # results whose elements nobody can read
    isolated: bool = False  # whether operators were run on both devices with the same arguments

    @property
    def same(self) -> bool:
        return not self.differences and self.culprit is None

    @property
    def module(self) -> str:
        if self.culprit is not None:
            return self.culprit.call.place.module
        if self.differences.operator is not None:
            return self.differences.operator.call.place.module
        return self.differences.module.module if self.differences.module is not None else ""

    @property
    def operator(self) -> str:
        call = self._call()
        return call.name if call is not None else ""

    @property
    def line(self) -> str:
        """The line of the program that called the operator: "file:line in function"."""
        call = self._call()
        return call.place.line if call is not None else ""

    @property
    def backward(self) -> bool:
        """Whether the operator was called in the backward pass."""
        call = self._call()
        return call is not None and call.place.backward

    @property
    def order(self) -> tuple[int, int]:
        """Places what was found in the order of the run, for a comparison between ranks.

        Where every operator does the same on both devices, what differs may have come from another rank.
        """
        call = self._call()
        if call is not None:
            return (int(self.isolated and self.culprit is None), call.index)
        return (1, self.differences.module.index) if self.differences.module is not None else (2, 0)

    def dump(self, path: str | Path) -> None:
        """Writes the arguments of the operator to a file, for ``python -m vccl.compare replay``.

        Raises:
            ValueError: no operator differs, or its arguments cannot be written to a file.
        """
        if self.arguments is None:
            raise ValueError("there are no arguments to write: no operator differs whose arguments are kept")
        write_dump(path, self.arguments)

    def _call(self) -> Any:
        if self.culprit is not None:
            return self.culprit.call
        return self.differences.operator.call if self.differences.operator is not None else None

    def __str__(self) -> str:
        ours, reference = self.sides
        differences = self.differences
        if self.same:
            lines = [
                f"{ours} and {reference} (the reference): no difference in {differences.compared} operators"
            ]
        else:
            lines = [f"{ours} differs from {reference} (the reference)."]
        if self.culprit is not None:
            lines += ["First operator that differs with the same arguments:"]
            lines += _of_call(self.culprit.call, self.culprit.difference)
        elif self.isolated and differences.operator is not None:
            lines += ["No operator up to the next one differs with the same arguments."]
        if differences.operator is not None:
            lines += ["First operator that differs in the two runs:"]
            lines += _of_call(differences.operator.call, differences.operator.difference)
        if differences.module is not None:
            call = f" (call {differences.module.call + 1})" if differences.module.call else ""
            lines += [f"First module: {differences.module.module!r}{call}: {differences.module.difference}"]
        if differences.result is not None:
            lines += [f"After the run: {differences.result.name}: {differences.result.difference}"]
        if not self.same:
            lines += [f"Not compared: {name}" for name in differences.unmatched]
            if differences.dropouts:
                calls = "1 call" if differences.dropouts == 1 else f"{differences.dropouts} calls"
                lines += [f"Not compared: dropout in {calls} of modules, as it has other operators there"]
        if self.rounded is not None and self.rounded.operator is not None:
            rounded = self.rounded.operator.call
            lines += [
                f"By rounding in narrow dtypes alone: {rounded.name} in {rounded.place}, and what follows"
            ]
        lines += [f"Not compared: {what}" for what in self.left_out]
        lines += [f"Random numbers of this side alone: {name}" for name in self.random]
        return "\n".join(lines)


def _of_call(call: Any, difference: Any) -> list[str]:
    lines = [f"  {call.name} in {call.place}", f"  arguments {call.arguments}", f"  {difference}"]
    if call.place.line:
        lines.insert(1, f"  called at {call.place.line}")
    return lines
