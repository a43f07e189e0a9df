"""Runs a program on two sides, and compares what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from vccl._device_type import device_type
from vccl.compare.collectives import any_rank
from vccl.compare.differences import Differences, find_differences
from vccl.compare.draws import Replay
from vccl.compare.isolation import Isolation
from vccl.compare.recording import Recorder, Recording
from vccl.compare.report import Report
from vccl.compare.sides import Prepared, Program, Side, run_on_side
from vccl.compare.tolerance import Tolerance


def compare(
    model: Callable[..., Any],
    args: tuple = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    side: Side | str | None = None,
    reference: Side | Recording | str = "cpu",
    loss: Callable[[Any], torch.Tensor] | None = None,
    backward: bool | None = None,
    tolerance: Tolerance | None = None,
) -> Report:
    """Runs a model on two sides with the same weights, inputs and random numbers, and reports differences.

    Each side gets copies of the model and of all tensors and modules among the arguments, so nothing of the
    caller's changes. What a function reads beside its arguments is not copied. If something differs, the
    model runs a third time, to find the operator at fault.

    Args:
        model: a module or a function.
        args, kwargs: its arguments. Modules may be among them.
        side: the side that is examined; None: the current card.
        reference: the side that is right: a ``Side``, a device, or a ``Recording`` of another process.
        loss: takes the output and returns the start of the backward pass. Without it, the pass starts
            from fixed gradients of all outputs.
        backward: whether there is a backward pass; None: for a module, and if ``loss`` is given.
        tolerance: when tensors differ; None: ``Tolerance()``.

    Raises:
        Whatever the model raises on one of the sides, with a note that names the side.
    """
    program = _program(model, args, kwargs, loss, backward)
    tested = _side(side if side is not None else device_type())
    tolerance = tolerance or Tolerance()
    theirs = reference if isinstance(reference, Recording) else _recorded(program, _side(reference), None)
    ours = _recorded(program, tested, Replay(theirs.draws))
    suspected = find_differences(ours, theirs, tolerance)
    left_out = list(dict.fromkeys(ours.left_out + theirs.left_out))
    report = Report((ours.side, theirs.side), suspected, random=ours.without_draw, left_out=left_out)
    if not any_rank(bool(suspected), ours.groups):  # the ranks of a collective run the model equally often
        return report
    if not _round_alike(ours, theirs):
        report.differences = find_differences(ours, theirs, tolerance, forgive_rounding=True)
    other = torch.device(theirs.device)
    alike = torch.device(tested.device).type == other.type or tested.dtype != theirs.dtype
    prepared = program.on(tested)
    isolation = Isolation(
        prepared.places,
        Replay(theirs.draws),
        prepared.device_type,
        None if alike else other,
        _last(report.differences, ours) if suspected else -1,  # else this rank only joins the collectives
        tolerance,
    )
    run_on_side(prepared, isolation)
    report.isolated = not alike and bool(suspected)
    report.culprit = isolation.culprit
    report.arguments = isolation.culprit.plain if isolation.culprit is not None else isolation.at_last
    if report.culprit is not None:
        report.differences = suspected
    elif suspected and not report.differences:
        report.rounded = suspected
    return report


def _last(differences: Differences, ours: Recording) -> int:
    """Returns the number of the last operator that may be at fault."""
    return differences.operator.call.index if differences.operator is not None else len(ours.operators)


def _round_alike(ours: Recording, reference: Recording) -> bool:
    """Returns whether both runs have called the same operators on devices of one type."""
    types = {torch.device(recording.device).type for recording in (ours, reference)}
    calls = [[(call.name, call.arguments) for call in run.operators] for run in (ours, reference)]
    return len(types) == 1 and calls[0] == calls[1]


def record(
    model: Callable[..., Any],
    args: tuple = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    side: Side | str | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    backward: bool | None = None,
) -> Recording:
    """Runs a model once, as ``compare`` does, and returns what its operators computed.

    A recording that was saved is the ``reference`` of another process: with another VDEV_LAUNCH, another
    version of a library, or on another machine.
    """
    program = _program(model, args, kwargs, loss, backward)
    return _recorded(program, _side(side if side is not None else device_type()), None)


def _program(
    model: Callable[..., Any],
    args: tuple,
    kwargs: Mapping[str, Any] | None,
    loss: Callable[[Any], torch.Tensor] | None,
    backward: bool | None,
) -> Program:
    if not isinstance(args, tuple):
        raise TypeError(f"the arguments must be a tuple, not a {type(args).__name__}: write (x,)")
    if backward is None:
        backward = loss is not None or isinstance(model, nn.Module)
    return Program(model, args, kwargs or {}, loss, backward)


def _side(side: Any) -> Side:
    return side if isinstance(side, Side) else Side(side)


def _recorded(program: Program, side: Side, replay: Replay | None) -> Recording:
    prepared: Prepared = program.on(side)
    recording = Recording(str(side), str(side.device), side.dtype)
    recorder = Recorder(recording, prepared.places, replay)
    output = run_on_side(prepared, recorder)
    recording.keep_results(prepared.results(output), recorder.precisions)
    recording.without_draw = replay.missing if replay is not None else []
    recording.move_to_host()
    return recording
