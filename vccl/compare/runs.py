"""Runs a program on two sides, and compares what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from vccl._device_type import device_type
from vccl.compare.differences import find_differences
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
    """Runs a model on two sides with the same weights, inputs and random numbers, and reports what differs.

    Each side gets copies of the model and of all tensors and modules among the arguments, so nothing of the
    caller's changes. What a function reads beside its arguments is not copied. If something differs, the
    model runs a third time, to find the operator at fault.

    Args:
        model: a module or a function.
        args, kwargs: its arguments. Modules may be among them.
        side: what is examined; None: the current card.
        reference: what it should agree with: a side, a device, or a ``Recording`` of another process.
        loss: takes the output and returns what the backward pass starts from. Without it, the pass starts
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
    found = find_differences(ours, theirs, tolerance)
    report = Report((ours.side, theirs.side), found, random=ours.without_draw)
    if not found:
        return report
    other = torch.device(theirs.device)
    alike = torch.device(tested.device).type == other.type or tested.dtype != theirs.dtype
    last = found.operator.call.index if found.operator is not None else len(ours.operators)
    prepared = program.on(tested)
    isolation = Isolation(
        prepared.places,
        Replay(theirs.draws),
        prepared.device_type,
        None if alike else other,
        last,
        tolerance,
    )
    run_on_side(prepared, [isolation])
    report.isolated = not alike
    report.culprit = isolation.culprit
    report.arguments = isolation.culprit.plain if isolation.culprit is not None else isolation.at_last
    return report


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
    observers: list[AbstractContextManager] = [Recorder(recording, prepared.places, replay)]
    recording.results = run_on_side(prepared, observers)
    recording.without_draw = replay.missing if replay is not None else []
    recording.move_to_host()
    return recording
