"""The ranks of one run of pytest, in pytest's own process."""

import functools
import importlib
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import pytest
from _pytest.skipping import evaluate_skip_marks

from . import coverage, reports, schedules
from .helpers import ranks_as_text
from .messages import Begin, Place, RunFunction, RunTest
from .pool import Pool, RanksError
from .ports import reserved_port
from .running import Outcome, run_on
from .wanted import GROUP_TIMEOUT, Settings, Wanted, from_mark, variables

# Seconds for a call of a function.
CALL_TIMEOUT = 300.0
# How many of the things that a test has left a warning names.
_MOST_TOLD = 4


class RanksWarning(pytest.PytestWarning):
    """A test has changed a rank, which was replaced, or ranks cannot be forked."""


class RankFailed(AssertionError):
    """A rank raised, died or did not come to an end. The text has the outcome of every rank."""

    def __init__(self, told: reports.Told) -> None:
        super().__init__(str(told))
        self.told = told


class _EveryRank(Container[int]):
    def __contains__(self, rank: object) -> bool:
        return True


class RanksSession:
    """Runs tests and functions on ranks."""

    def __init__(self, config: pytest.Config, represent: reports.Represent) -> None:
        self._config = config
        self._represent = represent
        self.settings = Settings.of(config)
        # The test that runs in pytest's process.
        self.item: pytest.Item | None = None
        self.schedule: str | None = None  # under which ranks run
        self._pool: Pool | None = None
        self._variables: dict[str, str] = {}
        self._environment: dict[str, str] = {}
        self._told_reason = False

    def protocol(
        self,
        item: pytest.Item,
        nextitem: pytest.Item | None,
        timeout: float | None,
        texts: Sequence[str] = (),
    ) -> None:
        """Runs a test on its ranks, and reports it.

        Args:
            timeout: seconds that pytest-timeout gives the test. The mark ``ranks`` comes first.
            texts: the schedules under which it runs, until it fails.
        """
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        outcomes: list[Outcome] = []

        def play(schedule: str | None) -> list[pytest.TestReport]:
            self.schedule = schedule
            outcomes[:], made = self._run_item(item, timeout)
            return made

        made = schedules.first_failure(item, texts, play) if texts else play(None)
        for report in made:
            item.ihook.pytest_runtest_logreport(report=report)

        def end() -> None:
            try:
                self._tell_warnings(item, outcomes)
            finally:
                # Tests before this one have kept what they have in common with it, such as fixtures of the
                # module.
                item.session._setupstate.teardown_exact(nextitem)

        call: pytest.CallInfo[Any] = pytest.CallInfo.from_call(end, when="teardown")
        if call.excinfo is not None:
            report = item.ihook.pytest_runtest_makereport(item=item, call=call)
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _run_item(
        self, item: pytest.Item, timeout: float | None
    ) -> tuple[list[Outcome], list[pytest.TestReport]]:
        """Runs a test on its ranks, unless it is skipped or asks for what cannot be."""
        refuse: Callable[[], object]
        try:
            wanted = from_mark(item, self.settings, timeout)
            skipped = evaluate_skip_marks(item)
            reason = skipped.reason if skipped else wanted.reason_to_skip()
            if not skipped and not reason:
                outcomes, started = self._run_test(item, wanted)
                return outcomes, reports.reports_of(item, outcomes, started, self._represent)
            refuse = functools.partial(pytest.skip, reason)
        except (
            ValueError,
            RanksError,
            pytest.fail.Exception,
        ) as error:  # the last is of a condition of skipif
            refuse = functools.partial(pytest.fail, str(error), pytrace=False)
        return [], self._reports_without_ranks(item, refuse)

    def outcomes(
        self, function: Callable[..., Any], args: Sequence[Any], size: int, timeout: float
    ) -> list[Outcome]:
        """Calls ``function(rank, size, store, *args)`` on ranks that may end. Returns what became of each."""
        return self.call(self._without_group(size, timeout), function, args, range(size))

    def results(
        self, function: Callable[..., Any], args: Sequence[Any], size: int, timeout: float
    ) -> list[Any]:
        """Calls ``function(rank, size, store, *args)`` on ranks, and returns what each has returned.

        Raises:
            RankFailed: a rank has failed.
        """
        return self.checked(self.call(self._without_group(size, timeout), function, args, ()))

    def call(
        self, wanted: Wanted, function: Callable[..., Any], args: Sequence[Any], dying: Sequence[int]
    ) -> list[Outcome]:
        """Calls a function on ranks, in a test of pytest's own process, and returns what became of each."""
        if reason := wanted.reason_to_skip():
            pytest.skip(reason)
        if "<" in function.__qualname__:
            raise ValueError(f"{function.__qualname__}: a function for ranks stands at the top of its module")
        if not set(dying) <= set(range(wanted.size)):
            raise ValueError(f"dying={list(dying)}: there are {wanted.size} ranks")
        item = self._running_item()

        def call_of(place: Place) -> RunFunction:
            return RunFunction(place, function.__module__, function.__qualname__, tuple(args))

        outcomes, _ = self._run_on_ranks(item, wanted, call_of, dying)
        self._tell_warnings(item, outcomes)
        return outcomes

    def checked(self, outcomes: Sequence[Outcome]) -> list[Any]:
        """Returns what a function has returned on each rank.

        Raises:
            RankFailed: a rank has failed.
        """
        if any(outcome.has_failed for outcome in outcomes):
            raise RankFailed(self.told(outcomes))
        return [outcome.done.result if outcome.done else None for outcome in outcomes]

    def told(self, outcomes: Sequence[Outcome]) -> reports.Told:
        """Returns what became of a function on ranks."""
        return reports.told_of(self._running_item(), outcomes)

    def renew(self) -> None:
        """Ends the ranks that there are. The next call has new ones."""
        if self._pool is not None:
            self._pool.end_ranks()

    def close(self) -> None:
        """Ends all ranks, and what forks them."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _without_group(self, size: int, timeout: float) -> Wanted:
        return Wanted.of(self.settings, size, group=False, timeout=timeout)

    def _running_item(self) -> pytest.Item:
        if self.item is None:
            raise RuntimeError("functions can be called on ranks inside of a test only")
        return self.item

    def _run_test(self, item: pytest.Item, wanted: Wanted) -> tuple[list[Outcome], float]:
        """Runs a test on its ranks. Returns what ``run_on`` returns."""

        def call_of(place: Place) -> RunTest:
            return RunTest(place, str(item.path), item.nodeid, self._folder(item, place.number))

        debugged = self.settings.rank_of_debugger
        terminal = self._terminal() if debugged is not None else None
        try:
            return self._run_on_ranks(item, wanted, call_of, debugged=debugged)
        finally:
            if terminal is not None:
                terminal.resume_global_capture()

    def _run_on_ranks(
        self,
        item: pytest.Item,
        wanted: Wanted,
        call_of: Callable[[Place], RunTest | RunFunction],
        dying: Sequence[int] = (),
        debugged: int | None = None,
    ) -> tuple[list[Outcome], float]:
        """Runs a call in a world of ranks that know the file of a test. Returns what ``run_on`` returns."""
        pool, number = self._pool_for(wanted)
        address = pool.address

        def call_of_rank(rank: int, pids: tuple[int, ...]) -> RunTest | RunFunction:
            return call_of(wanted.place(rank, pids, address, number, free_port))

        with reserved_port() as free_port, schedules.variables(self.schedule, wanted.size) as scheduled:
            wanted = wanted.with_variables({**self._changed_variables(), **scheduled})
            ran = run_on(pool, str(item.path), wanted.size, call_of_rank, wanted.timeout, dying, debugged)
        if self.settings.fresh:
            self.renew()
        return ran

    def _pool_for(self, wanted: Wanted) -> tuple[Pool, int]:
        """Returns the pool, and a number that no other call has."""
        needed = variables(wanted.device, wanted.size)
        if self._pool is not None and any(
            self._variables.get(name) != value for name, value in needed.items()
        ):
            self.close()  # ranks read them when they start
        if self._pool is None:
            self._variables = needed
            self._environment = dict(os.environ)
            self._pool = Pool(self._begin(), self._terminals(), needed)
        return self._pool, next(self._pool.numbers)

    def _changed_variables(self) -> dict[str, str | None]:
        """Returns what this process has set, or removed (None), since ranks can be forked."""
        then, now = self._environment, os.environ
        names = {name for name in {*then, *now} if then.get(name) != now.get(name)}
        return {name: now.get(name) for name in names - {"PYTEST_CURRENT_TEST"}}

    def _terminals(self) -> Container[int]:
        if self._config.getoption("capture", "fd") == "no":
            return _EveryRank()
        debugged = self.settings.rank_of_debugger
        return frozenset() if debugged is None else frozenset([debugged])

    def _terminal(self) -> Any:
        """Gives the terminal to a debugger. Returns what takes it back."""
        capture: Any = self._config.pluginmanager.getplugin("capturemanager")
        capture.suspend_global_capture(in_=True)
        return capture

    def _begin(self) -> Begin:
        factory = getattr(self._config, "_tmp_path_factory", None)
        return Begin(
            tuple(map(str, self._config.invocation_params.args)),
            str(self._config.invocation_params.dir),
            tuple(sys.path),
            _portable(getattr(self._config, "workerinput", None)),
            str(factory.getbasetemp()) if factory else None,
            self.settings.rank_of_debugger,
            coverage.of_this_process(),
            tuple(self._arguments_of_ranks()),
        )

    def _arguments_of_ranks(self) -> Iterator[str]:
        """Returns options for the processes that collect for ranks, besides those of this one."""
        has = self._config.pluginmanager.hasplugin
        if has("capturemanager"):
            yield "--capture=no"  # what ranks print is read at their descriptors
        if has("logging-plugin"):
            yield from ("-o", f"log_file={os.devnull}")  # they would begin this process's file anew
        if has("_cov"):
            yield "--no-cov"  # see coverage.py

    def _folder(self, item: pytest.Item, number: int) -> str | None:
        """Returns the folder that the fixture tmp_path makes on the first rank that takes it."""
        factory = getattr(self._config, "_tmp_path_factory", None)
        name = "".join(letter if letter.isalnum() else "_" for letter in item.name)[:30]
        return str(factory.getbasetemp() / f"{name}_of_ranks_{number}") if factory else None

    def _reports_without_ranks(
        self, item: pytest.Item, raises: Callable[[], object]
    ) -> list[pytest.TestReport]:
        """Returns the reports of a test that does not come to its ranks."""
        made = []
        for phase, function in (("setup", raises), ("teardown", lambda: None)):
            call: pytest.CallInfo[Any] = pytest.CallInfo.from_call(function, when=phase)  # type: ignore[arg-type]
            made.append(item.ihook.pytest_runtest_makereport(item=item, call=call))
        return made

    def _tell_warnings(self, item: pytest.Item, outcomes: Sequence[Outcome]) -> None:
        if self._pool is not None and self._pool.reason_for_no_forks and not self._told_reason:
            self._told_reason = True
            message = f"every rank imports torch and the tests by itself: {self._pool.reason_for_no_forks}"
            warnings.warn_explicit(message, RanksWarning, str(item.path), 1)
        told = set()
        for data in [data for outcome in outcomes if outcome.done for data in outcome.done.warnings]:
            key = (data["category"], data["text"], data["filename"], data["lineno"])
            if key not in told:
                told.add(key)
                warnings.warn_explicit(_warning(data), None, data["filename"], data["lineno"])
        if any(outcome.has_failed for outcome in outcomes):
            return  # a test that failed did not come to where it would have cleaned up
        left: dict[str, list[int]] = {}
        for outcome in outcomes:
            for text in outcome.done.left if outcome.done else ():
                left.setdefault(text, []).append(outcome.rank)
        if left:
            things = [f"{text} on {ranks_as_text(ranks)}" for text, ranks in left.items()]
            more = f"; and {len(things) - _MOST_TOLD} more" if len(things) > _MOST_TOLD else ""
            message = (
                f"{item.nodeid} has left {'; '.join(things[:_MOST_TOLD])}{more}. These ranks were replaced."
            )
            warnings.warn_explicit(message, RanksWarning, str(item.path), (item.location[1] or 0) + 1)


_running: RanksSession | None = None


def running() -> RanksSession | None:
    """Returns what runs tests on ranks, for classes that have no fixtures, or None without pytest."""
    return _running


def set_running(session: RanksSession | None, item: pytest.Item | None) -> None:
    """Tells which test runs in pytest's process. The plugin calls it before each."""
    global _running
    _running = session
    if session is not None:
        session.item = item


class RankPool:
    """Calls functions on ranks. The fixture ``rank_pool`` returns it."""

    def __init__(self, session: RanksSession) -> None:
        self._session = session

    def run(
        self,
        size: int,
        function: Callable[..., Any],
        *args: Any,
        hosts: int | Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        group: bool = True,
        group_timeout: float = GROUP_TIMEOUT,
        dying: Sequence[int] = (),
        timeout: float = CALL_TIMEOUT,
    ) -> list[Any]:
        """Calls ``function(rank, size, *args)`` on ranks, inside of a default group.

        Args:
            size: how many ranks.
            function: a function at the top of a test module.
            args: what can be pickled.
            hosts: the pretended host of each rank, or how many hosts there are.
            env: environment variables of all ranks during the call.
            group: False: makes no default group and calls ``function(rank, size, store, *args)``.
            group_timeout: of the default group, in seconds.
            dying: ranks that end during the call.
            timeout: bound of the whole call, in seconds.

        Returns:
            What each rank has returned, and None for ranks that ended.

        Raises:
            RankFailed: a rank raised, died although it is not in ``dying``, or did not come to an end.
            ValueError: the arguments do not go together.
        """
        __tracebackhide__ = True
        wanted = Wanted.of(
            self._session.settings,
            size,
            hosts=hosts,
            env=env,
            group=group,
            group_timeout=group_timeout,
            timeout=timeout,
        )
        return self._session.checked(self._session.call(wanted, function, args, dying))

    def renew(self) -> None:
        """Ends the ranks that there are. The next call has new ones, in which nothing has run yet."""
        self._session.renew()


def _portable(values: Any) -> dict[str, Any] | None:
    """Returns the entries of a mapping that can be sent to another process."""
    if values is None:
        return None
    found = {}
    for key, value in values.items():
        try:
            pickle.dumps(value)
        except Exception:
            continue
        found[key] = value
    return found


def _warning(data: Mapping[str, Any]) -> Warning:
    """Makes a warning that a rank has sent anew. Of a class that is not found, it becomes a UserWarning."""
    try:
        category = importlib.import_module(data["module"])
        for name in data["category"].split("."):
            category = getattr(category, name)
        made = category(data["text"])  # type: ignore[operator]
    except Exception:  # a constructor may take something else
        return UserWarning(data["text"])
    return made if isinstance(made, Warning) else UserWarning(data["text"])
