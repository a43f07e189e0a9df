"""Runs a script under random plans, and says what became of each run."""

from __future__ import annotations

import dataclasses
import enum
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from . import draws, runs
from .rules import Rules
from .runs import Program, Run


class SoakError(Exception):
    """The script cannot be judged: it fails without faults, or prints something else each time."""


class Verdict(enum.Enum):
    """What became of a run."""

    RIGHT = "ended right"
    NAMED = "ended with an error that names the rank"
    UNNAMED = "ended with an error that does not name the rank"
    DAMAGED = "ended with other numbers, as the fault is to make them"
    WRONG = "ended with other numbers than without faults"
    BROKEN = "ended with an error, which its fault is no reason for"
    HUNG = "hung"
    MISSED = "came to no fault"


BAD = (Verdict.WRONG, Verdict.BROKEN, Verdict.HUNG)


@dataclasses.dataclass
class Judged:
    """One seed, its plan, and what became of its run."""

    seed: int
    plan: str
    verdict: Verdict
    seconds: float
    status: int | None
    struck: list[dict[str, Any]]
    detail: str
    """The diagnosis of a run that hung, the first lines that differ, or the last line of the errors."""

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "verdict": self.verdict.name.lower()}


@dataclasses.dataclass
class Reference:
    """What the script does without faults."""

    run: Run
    places: Sequence[Any]


def reference(program: Program, most_seconds: float) -> Reference:
    """Runs the script without faults, and once more with a plan that only notes where ranks come by.

    Raises:
        SoakError: it fails, or the two runs have different results.
    """
    first = runs.run(program, None, most_seconds)
    if first.status != 0:
        why = "was not over in time" if first.status is None else f"ended with status {first.status}"
        raise SoakError(f"without faults, the script {why}:\n{first.errors[-2000:]}")
    second = runs.run(program, draws.probe(), most_seconds)
    if second.status != 0 or second.result != first.result:
        raise SoakError(
            "two runs without faults have different results, so a fault's effect cannot be told from others: "
            f"{_difference(first, second)}. Name a file with --result to which the script writes what must "
            "be the same, or leave times and the like out of its output."
        )
    if not second.struck:
        raise SoakError("the script makes no group of the backend vccl, so no fault can strike it")
    return Reference(first, second.struck)


def judge(reference_: Reference, seed: int, plan: Rules, run: Run) -> Judged:
    """Returns what became of a run under a plan."""
    rank = plan.rules[0].rank[0][0]
    if run.status is None:
        verdict, detail = Verdict.HUNG, "; ".join(run.diagnosis) or "vccl.top finds nobody to blame"
    elif run.status != 0:
        named = re.search(rf"\brank {rank}\b", run.errors, re.IGNORECASE) is not None
        verdict = Verdict.NAMED if named else Verdict.UNNAMED
        if plan.rules[0].kind in draws.SURVIVED and any(not each.why_not for each in run.struck):
            verdict = Verdict.BROKEN
        lines = [line for line in run.errors.splitlines() if line.strip()]
        detail = lines[-1] if lines else ""
    elif run.result == reference_.run.result:
        hit = any(not each.why_not for each in run.struck)
        verdict, detail = (Verdict.RIGHT if hit else Verdict.MISSED), ""
    else:
        damaging = plan.rules[0].kind in draws.DAMAGING
        verdict, detail = (Verdict.DAMAGED if damaging else Verdict.WRONG), _difference(reference_.run, run)
    struck = [dataclasses.asdict(each) for each in run.struck]
    return Judged(seed, plan.words(), verdict, round(run.seconds, 3), run.status, struck, detail)


def soak(
    program: Program,
    *,
    seed: int,
    seconds: float,
    count: int | None,
    kinds: Sequence[str],
    bound: float,
    tell: Callable[[Judged], None],
) -> list[Judged]:
    """Runs the script under the plans of `seed`, `seed` + 1 and so on, at least one.

    Args:
        program: what is run.
        seed: the first seed.
        seconds: after which no further run is begun.
        count: how many runs are made at most, if not None.
        kinds: the kinds that are drawn.
        bound: how many seconds longer than without faults a run may take before it counts as one that hangs.
        tell: called with each run's outcome.

    Raises:
        SoakError: see :func:`reference`.
    """
    begin = time.monotonic()
    whole = reference(program, max(bound, 600.0))
    judged: list[Judged] = []
    while not judged or (time.monotonic() - begin < seconds and (count is None or len(judged) < count)):
        number = seed + len(judged)
        plan = draws.plan_of(number, whole.places, kinds)
        run = runs.run(program, plan, 3 * whole.run.seconds + bound)
        judged.append(judge(whole, number, plan, run))
        tell(judged[-1])
    return judged


def _difference(one: Run, other: Run) -> str:
    if isinstance(one.result, bytes) or isinstance(other.result, bytes):
        return "the result files differ" if other.result is not None else "there is no result file"
    if other.status != 0:
        return f"the second ended with status {other.status}"
    missing = [line for line in one.output.splitlines() if line not in other.output.splitlines()]
    added = [line for line in other.output.splitlines() if line not in one.output.splitlines()]
    return f"{(missing or ['(nothing)'])[0]!r} became {(added or ['(nothing)'])[0]!r}"
