"""The first difference between two recordings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch

from vccl.compare.draws import OF_DROPOUT, is_two_forms_of_dropout
from vccl.compare.recording import OperatorCall, Recording
from vccl.compare.tolerance import Difference, Tolerance, difference

_Key = tuple[str, int, bool, str]
_Judge = Callable[..., tuple[int, Difference] | None]
# Casts are as many on both sides by chance, as autocast has other rules on the CPU than on cards. A cast only
# passes on what another operator has computed, so what is wrong with it shows where its result is read.
_CAST = "aten::_to_copy"


@dataclass
class OperatorDifference:
    """The first operator whose results differ, and how."""

    call: OperatorCall
    value: int
    difference: Difference


@dataclass
class ModuleDifference:
    """The first module to end with an output that differs. ``index`` is the number of the next operator."""

    module: str
    call: int
    index: int
    difference: Difference


@dataclass
class ResultDifference:
    """An output, gradient, parameter or buffer that differs after the run."""

    name: str
    difference: Difference


@dataclass
class Differences:
    """The first difference of each kind, or None. ``unmatched`` names the operators that were not compared.

    Operators are matched by name and order within one call of a module. If a module calls an operator more
    often on one side than on the other, as where a fused kernel stands for several operators, then these
    calls are not compared. What the module makes of them is. Casts are not compared. ``dropouts`` counts the
    calls of modules in which dropout has one form on this side and another on the other: their operators are
    not in ``unmatched``.
    """

    operator: OperatorDifference | None
    module: ModuleDifference | None
    result: ResultDifference | None
    compared: int
    unmatched: list[str]
    dropouts: int = 0

    def __bool__(self) -> bool:
        return not (self.operator is None and self.module is None and self.result is None)


def find_differences(
    ours: Recording, reference: Recording, tolerance: Tolerance, forgive_rounding: bool = False
) -> Differences:
    """Compares two recordings that are on the CPU.

    Args:
        ours, reference: the recordings.
        tolerance: decides what differs.
        forgive_rounding: differences in narrow dtypes that runs have that only round otherwise do not count.
    """
    judge = partial(first_difference, tolerance=tolerance, forgive_rounding=forgive_rounding)
    partners, unmatched, dropouts = _partners(ours, reference)
    operator = None
    for call, partner in partners:
        found = _call_difference(call, partner, judge)
        if found is not None and not _fits_another(call, partners, judge):
            operator = OperatorDifference(call, *found)
            break
    return Differences(
        operator,
        _module_difference(ours, reference, judge),
        _result_difference(ours, reference, judge),
        len(partners),
        unmatched,
        dropouts,
    )


def first_difference(
    ours: list[torch.Tensor],
    reference: list[torch.Tensor],
    tolerance: Tolerance,
    precisions: Iterable[torch.dtype | None] = (),
    forgive_rounding: bool = False,
) -> tuple[int, Difference] | None:
    """Returns which of some results differs first, and how. They carry the rounding of ``precisions``."""
    if len(ours) != len(reference):
        return 0, Difference(f"{len(ours)} results, and {len(reference)} in the reference")
    for i, pair in enumerate(zip(ours, reference, strict=True)):
        found = difference(*pair, tolerance, precisions, forgive_rounding)
        if found is not None:
            return i, found
    return None


def _call_difference(
    ours: OperatorCall, reference: OperatorCall, judge: _Judge
) -> tuple[int, Difference] | None:
    return judge(ours.values, reference.values, precisions=(ours.precision, reference.precision))


def _fits_another(
    call: OperatorCall, partners: list[tuple[OperatorCall, OperatorCall]], judge: _Judge
) -> bool:
    """Returns whether a call agrees with another one of the reference, which its own partner does not fit.

    Then the sides have called the operator in another order, as for the gates of a recurrent layer.
    """
    for ours, theirs in partners:
        if (
            _key(ours) == _key(call)
            and _call_difference(call, theirs, judge) is None
            and _call_difference(ours, theirs, judge) is not None
        ):
            return True
    return False


def _key(call: OperatorCall) -> _Key:
    return call.place.module, call.place.call, call.place.backward, call.name


def _by_key(recording: Recording) -> dict[_Key, list[OperatorCall]]:
    calls: dict[_Key, list[OperatorCall]] = defaultdict(list)
    for call in recording.operators:
        if call.name == _CAST:
            continue
        calls[_key(call)].append(call)
    return calls


def _partners(
    ours: Recording, reference: Recording
) -> tuple[list[tuple[OperatorCall, OperatorCall]], list[str], int]:
    """Returns pairs of calls in the order of our run, the names of those that have no partner, and the number
    of dropouts in two forms."""
    mine, theirs = _by_key(ours), _by_key(reference)
    pairs = []
    alone: dict[tuple[str, int], dict[_Key, str]] = defaultdict(dict)  # by the call of a module
    for key in mine.keys() | theirs.keys():
        calls, others = mine.get(key, []), theirs.get(key, [])
        if len(calls) == len(others):
            pairs += list(zip(calls, others, strict=True))
        else:
            alone[key[:2]][key] = (
                f"{key[3]} in module {key[0]!r}: {len(calls)} calls, {len(others)} in the reference"
            )
    dropouts = {place for place, keys in alone.items() if is_two_forms_of_dropout({key[3] for key in keys})}
    unmatched = {
        text
        for place, keys in alone.items()
        for key, text in keys.items()
        if place not in dropouts or key[3] not in OF_DROPOUT
    }
    # A draw that found no record differs by chance.
    drawn = set(ours.without_draw)
    pairs = [pair for pair in pairs if not (pair[0].random and f"{pair[0].name} in {pair[0].place}" in drawn)]
    return sorted(pairs, key=lambda pair: pair[0].index), sorted(unmatched), len(dropouts)


def _module_difference(ours: Recording, reference: Recording, judge: _Judge) -> ModuleDifference | None:
    theirs = {(call.module, call.call): call for call in reference.modules}
    for call in ours.modules:
        partner = theirs.get((call.module, call.call))
        if partner is None:
            continue
        carried = (call.precision, partner.precision)
        found = judge(call.values, partner.values, precisions=carried)
        if found is not None:
            return ModuleDifference(call.module, call.call, call.index, found[1])
    return None


def _result_difference(ours: Recording, reference: Recording, judge: _Judge) -> ResultDifference | None:
    for name, value in ours.results.items():
        if name not in reference.results:
            return ResultDifference(name, Difference("the reference has none"))
        carried = (ours.precisions[name], reference.precisions[name])
        found = judge([value], [reference.results[name]], precisions=carried)
        if found is not None:
            return ResultDifference(name, found[1])
    for name in reference.results.keys() - ours.results.keys():
        return ResultDifference(name, Difference("only the reference has one"))
    return None
