"""Makes one report of a test out of the reports of all ranks."""

import dataclasses
import re
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from .helpers import ranks_as_text
from .running import Outcome

_LAST_WORDS = 12  # lines
_A_MOMENT = 1e-9  # seconds, which keep the failures of a rank in order
_PHASES = ("setup", "call", "teardown")
# What differs between ranks that fail alike.
_OF_ONE_RANK = re.compile(r"0x[0-9a-f]+|rank \d+|pid \d+")


# Makes what pytest shows of a failure, of headlines and texts, a file and line, and a message in a line.
Represent = Callable[[Sequence[Sequence[str]], tuple[str, int], str], Any]


@dataclasses.dataclass
class RankFailure:
    """A failure of one rank, or the equal failures of several."""

    ranks: list[int]
    at: float
    headline: str
    message: str  # in a line
    text: str
    phase: str
    is_expected: bool = False  # by the mark xfail
    report: pytest.TestReport | None = None
    differences: str = ""  # what ranks of the group have told otherwise


def reports_of(
    item: pytest.Item, outcomes: Sequence[Outcome], seconds_to_start: float, represent: Represent
) -> list[pytest.TestReport]:
    """Returns the reports of setup, call and teardown of a test, in the order of pytest.

    The first failure decides what the test is, because it is often the cause of the others. So an expected
    failure (xfail) of one rank is the test's, although the other ranks then fail in another way.
    """
    ranks = [_Reports(item, outcome) for outcome in outcomes]
    failures = _in_order(ranks)
    sections = _sections(outcomes, [rank.by_phase for rank in ranks])
    phases = {phase: [rank.by_phase[phase] for rank in ranks if phase in rank.by_phase] for phase in _PHASES}
    first = failures[0] if failures else None
    made = []
    for phase in _PHASES:
        if first is not None and phase == first.phase:
            made.append(_failed(item, failures, phases[phase], represent))
        elif phases[phase] and not (first and first.phase == "setup" and phase == "call"):
            made.append(_merged(phases[phase], first is not None))
        elif phase == "call" and first is None and not phases["setup"]:  # the test has ended all ranks
            made.append(_report(item, "call", "passed", None, []))
    if not phases["teardown"] and not (first and first.phase == "teardown"):
        made.append(_report(item, "teardown", "passed", None, []))
    if made[0].when != "setup":
        made.insert(0, _report(item, "setup", "passed", None, []))
    made[0].duration += seconds_to_start
    for report in made:
        report.sections = sections
    return made


@dataclasses.dataclass(frozen=True)
class Told:
    """The outcome of a function on ranks."""

    parts: list[tuple[str, str]]  # headlines and texts of failures, the first failure first
    sections: list[tuple[str, str]]  # what ranks have printed
    place: tuple[str, int]  # file and line of the test
    message: str  # of the first failure, in a line

    def __str__(self) -> str:
        return "\n".join(f"--- {headline} ---\n{text}" for headline, text in [*self.parts, *self.sections])


def told_of(item: pytest.Item, outcomes: Sequence[Outcome]) -> Told:
    """Returns the outcome of a function on ranks."""
    failures = _in_order([_Reports(item, outcome, is_test=False) for outcome in outcomes])
    sections = _sections(outcomes, [{} for _ in outcomes])
    return Told(_parts(failures), sections, _place_of(item), _message_of(failures) if failures else "")


def _place_of(item: pytest.Item) -> tuple[str, int]:
    return str(item.location[0]), (item.location[1] or 0) + 1


class _Reports:
    """The reports of one rank, and its failures."""

    def __init__(self, item: pytest.Item, outcome: Outcome, is_test: bool = True) -> None:
        self.by_phase: dict[str, pytest.TestReport] = {}
        self.failures: list[RankFailure] = []
        self._outcome = outcome
        done = outcome.done
        for data in (done.result if done and is_test else None) or ():
            report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
            self.by_phase[report.when] = report
            if report.failed or (report.skipped and hasattr(report, "wasxfail")):
                self._add(report.when, str(report.longreprtext), _message(report), report)
        if done is not None and done.error:
            self._add("call", done.error, _last_line_of_traceback(done.error))
        self._add_end()

    def _add(self, phase: str, text: str, message: str, report: pytest.TestReport | None = None) -> None:
        outcome = self._outcome
        at = outcome.failed_at or (report.stop if report else 0.0)
        if self.failures:  # of the same rank, which has told the time of its first failure only
            at = self.failures[-1].at + _A_MOMENT
        expected = report is not None and report.skipped
        after = " after another rank's failure had ended its collectives" if outcome.was_aborted else ""
        headline = f"failed at {phase}" if phase != "call" else "failed"
        if outcome.was_aborted and report is None:
            text = message
        self.failures.append(
            RankFailure([outcome.rank], at, headline + after, message, text, phase, expected, report)
        )

    def _add_end(self) -> None:
        outcome = self._outcome
        died = outcome.status is not None and not outcome.ended_on_purpose
        if not (died or outcome.was_late or outcome.was_ended):
            return
        text = ""
        if died:
            how = how_it_ended(outcome.status or 0)
            words = (outcome.stderr or outcome.stdout).splitlines()[-_LAST_WORDS:]
            text = "\n".join(["its last words:", *words] if words else ["it has printed nothing"])
        elif outcome.was_late:
            how = "no end in time"
        else:
            how = "no end after another rank had failed, so it was killed"
        if outcome.description:
            text = f"where it was:\n{outcome.description.rstrip()}"
        elif not died:
            text = "It has not told where it was. Its stderr has the stacks, unless it was stopped."
        # It failed because its collectives were aborted then. That failure tells what it waited for.
        later = [f"It then failed with:\n{failure.text}" for failure in self.failures if outcome.was_late]
        if outcome.was_late:
            self.failures.clear()
        text = "\n".join([text, *later])
        at = outcome.failed_at or 0.0
        if outcome.was_ended and not outcome.was_late:
            at = float("inf")
        message = f"{ranks_as_text([outcome.rank])}: {how}"
        headline = f"{how} (pid {outcome.pid})"
        self.failures.append(RankFailure([outcome.rank], at, headline, message, text, "call"))


def _in_order(ranks: Iterable[_Reports]) -> list[RankFailure]:
    return sorted((failure for rank in ranks for failure in rank.failures), key=lambda failure: failure.at)


def how_it_ended(status: int) -> str:
    """Returns "killed by SIGKILL", or "ended with status 3 in the middle of the test"."""
    if status >= 0:
        return f"ended with status {status} in the middle of the test"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _last_line_of_traceback(text: str) -> str:
    """Returns the line with the exception, which may have more lines."""
    lines = text.strip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    after = lines[frames[-1] + 1 :] if frames else lines
    return next((line for line in after if not line.startswith(" ")), lines[-1])


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message).splitlines()[0] if crash.message else ""
    lines = report.longreprtext.strip().splitlines()
    return lines[-1] if lines else ""


def _failed(
    item: pytest.Item, failures: list[RankFailure], reports: list[pytest.TestReport], represent: Represent
) -> pytest.TestReport:
    """Returns the one report of a test that failed. It has the failures of all phases."""
    first = failures[0]
    if first.is_expected and first.report is not None:
        return first.report
    crash = getattr(first.report and first.report.longrepr, "reprcrash", None)
    place = (crash.path, crash.lineno) if crash else _place_of(item)
    longrepr = represent(_parts(failures), place, _message_of(failures))
    return _report(item, first.phase, "failed", longrepr, reports)


def _message_of(failures: list[RankFailure]) -> str:
    """Returns the first failure in a line, with its ranks."""
    message = failures[0].message
    return (
        message if message.startswith("rank") else f"{ranks_as_text(_grouped(failures)[0].ranks)}: {message}"
    )


def _parts(failures: list[RankFailure]) -> list[tuple[str, str]]:
    """Returns headlines and texts, those of the first failure first. Later ones often follow from it."""
    first, *others = _grouped(failures)
    parts = [(f"{ranks_as_text(first.ranks)}: {first.headline}{', the first' if others else ''}", first.text)]
    return parts + [(f"{ranks_as_text(group.ranks)}: {group.headline}", _brief(group)) for group in others]


def _brief(failure: RankFailure) -> str:
    """Returns a line for each frame of a failure, and its message."""
    traceback = getattr(failure.report and failure.report.longrepr, "reprtraceback", None)
    if traceback is None or failure.text == failure.message:
        return failure.text
    lines = []
    for entry in traceback.reprentries:
        own = [line for line in entry.lines if line.startswith(">")]
        if entry.reprfileloc is not None and own:
            lines += [f"{entry.reprfileloc.path}:{entry.reprfileloc.lineno}", *own]
    lines += [line for line in traceback.reprentries[-1].lines if line.startswith("E ")]
    return "\n".join(lines) + failure.differences


def _grouped(failures: Iterable[RankFailure]) -> list[RankFailure]:
    """Joins failures of the same place in the code. What differs in their messages is listed."""
    groups: dict[tuple[str, ...], RankFailure] = {}
    for failure in failures:
        crash = getattr(failure.report and failure.report.longrepr, "reprcrash", None)
        text = _OF_ONE_RANK.sub("", failure.text)
        place = (crash.path, str(crash.lineno)) if crash else (text,)
        headline = _OF_ONE_RANK.sub("", failure.headline)
        key = (failure.phase, headline, *place, _type_of(failure.message) if crash else "")
        group = groups.get(key)
        if group is None:
            groups[key] = dataclasses.replace(failure, ranks=list(failure.ranks))
        elif failure.ranks[0] not in group.ranks:
            group.ranks += failure.ranks
            group.headline = headline.replace(" ()", "")
            if failure.message != group.message:
                difference = f"\n\n{ranks_as_text(failure.ranks)}: {failure.message}"
                group.text += difference
                group.differences += difference
    return list(groups.values())


def _type_of(message: str) -> str:
    """Returns the exception's type. A failed assert has none in its message."""
    found = re.match(r"[\w.]+(?=:)", message)
    return found[0] if found else ""


def _merged(reports: list[pytest.TestReport], has_failed: bool) -> pytest.TestReport:
    """Returns the report of a phase that failed nowhere, or only after the first failure."""
    passed = [report for report in reports if report.passed]
    # A test that has something to do on some ranks only may skip on the others.
    best = passed or ([] if has_failed else reports)
    base = (best or reports)[0]
    if has_failed and not base.passed:
        base.outcome, base.longrepr = "passed", None
    base.duration = max(report.duration for report in reports)
    return base


def _report(
    item: pytest.Item, phase: str, outcome: Any, longrepr: Any, reports: list[pytest.TestReport]
) -> pytest.TestReport:
    keywords: dict[str, Any] = dict.fromkeys(item.keywords, 1)
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=keywords,
        outcome=outcome,
        longrepr=longrepr,
        when=phase,  # type: ignore[arg-type]
        duration=max((report.duration for report in reports), default=0.0),
        start=min((report.start for report in reports), default=0.0),
        stop=max((report.stop for report in reports), default=0.0),
        user_properties=[entry for report in reports for entry in report.user_properties],
    )


def _sections(
    outcomes: Sequence[Outcome], reports: list[dict[str, pytest.TestReport]]
) -> list[tuple[str, str]]:
    """Returns what ranks have printed and logged, with equal texts once."""
    texts: dict[tuple[str, str], list[int]] = {}
    for outcome, by_phase in zip(outcomes, reports, strict=True):
        found = [("Captured stdout", outcome.stdout), ("Captured stderr", outcome.stderr)]
        if "teardown" in by_phase or "call" in by_phase:
            last = by_phase.get("teardown") or by_phase["call"]
            found += last.sections
        for name, text in found:
            if text:
                texts.setdefault((name, text), []).append(outcome.rank)
    return [(f"{name} of {ranks_as_text(ranks)}", text) for (name, text), ranks in texts.items()]
