"""Switches plans of faults on and off, and tells what has struck."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vccl import _C

from . import rules


@dataclasses.dataclass(frozen=True)
class Struck:
    """A fault that has struck this process."""

    rank: int
    """The rank in the job, or -1 if it was not known yet."""
    kind: str
    at: str
    place: str
    """The operation or the phase."""
    group: str
    sequence: int
    """The number of the operation in its group, or 0 for a phase and a product of matrices."""
    step: int
    rule: int
    """The number of the rule in its plan, from 0."""
    time: float
    """Seconds since 1970."""
    why_not: str = ""
    """Why the fault could do nothing at this place. Empty for a fault that has struck."""


def compiled(given: rules.Given, seed: int | None = None) -> _C._FaultPlan:
    """Returns a plan that can be switched on.

    Raises:
        ValueError: see :func:`plan`.
    """
    read = rules.read(given)
    as_dicts: list[dict[str, Any]] = [dataclasses.asdict(rule) for rule in read.rules]
    return _C._FaultPlan(as_dicts, read.seed if seed is None else seed)


@contextmanager
def plan(given: rules.Given, *, seed: int | None = None) -> Iterator[None]:
    """Lets the faults of a plan strike inside a ``with`` block, in this process.

    The plan counts from the begin of the block. It takes the place of the plan that was switched on before,
    which goes on afterwards.

    Args:
        given: the plan as text, or as the dict of one rule (the keys are those of the text), or as a list of
            such dicts. ``"@path"`` names a file that has either.
        seed: takes the place of the plan's own seed.

    Raises:
        ValueError: a key, a kind or a value is none that a plan has. The text lists what is allowed.
        OSError: the file cannot be read.
    """
    before = _C._switch_faults_on(compiled(given, seed))
    try:
        yield
    finally:
        _C._switch_faults_on(before)


def step(number: int | None = None) -> int:
    """Tells the plans at which step the program is, for the key ``step``. Returns the number of the step.

    Steps count from 0. Without an argument, the next step begins.
    """
    number = _C._step_of_faults() + 1 if number is None else number
    _C._set_step_of_faults(number)
    return number


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Names a phase of the program, for the key ``phase``, inside a ``with`` block: "checkpoint".

    Raises:
        ValueError: the name is none that programs can give. vccl names the others itself.
    """
    if name != "checkpoint":
        raise ValueError(f"a program names the phase 'checkpoint' alone, and not {name!r}")
    strikes = _C._begin_phase_of_faults(name)
    yield
    if strikes is not None:
        strikes.end()


def due() -> list[Struck]:
    """Returns the faults that were due in this process, whether or not they could do anything."""
    found, _ = _C._struck_faults()
    return [Struck(**each) for each in found]


def struck() -> list[Struck]:
    """Returns the faults that have struck this process, the oldest first and at most 10,000."""
    return [each for each in due() if not each.why_not]
