"""The differences in pytest when a rank runs a test."""

import contextlib
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from . import world
from .messages import Begin


class RankPlugin:
    """Collects the reports and warnings of one test, and provides the fixtures that concern ranks."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self.collect_errors: list[str] = []
        self.reports: list[pytest.TestReport] = []
        self.warnings: list[dict[str, Any]] = []
        self.folder: str | None = None
        # Called with the time of each failure.
        self.on_failure: Callable[[float], None] = lambda at: None

    def begin_test(self, folder: str | None, on_failure: Callable[[float], None]) -> None:
        """Forgets the last test. ``folder`` is the result of tmp_path."""
        self.reports, self.warnings = [], []
        self.folder, self.on_failure = folder, on_failure

    def become_rank(self, session: Any) -> None:
        """Takes this rank's own place for temporary files, which the template has not made yet."""
        factory = getattr(session.config, "_tmp_path_factory", None)
        if factory is not None and self._begin.base_folder is not None:
            factory._given_basetemp = Path(self._begin.base_folder) / f"rank-{os.getpid()}"
            factory._basetemp = None

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.collect_errors.append(report.longreprtext)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        world.current().make_group()

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[Any]) -> Iterator[None]:
        report = yield
        failing = call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception)
        if failing and not self._has_debugger():
            self.on_failure(time.monotonic())
        return report

    @pytest.hookimpl
    def pytest_exception_interact(self, call: pytest.CallInfo[Any], report: pytest.TestReport) -> None:
        if not self._has_debugger() or not isinstance(report, pytest.TestReport):
            return
        import pdb

        assert call.excinfo is not None
        print(f"\n--- {report.nodeid}, rank {world.current().rank} ---")
        traceback.print_exception(call.excinfo.value, limit=-5)
        debugger = pdb.Pdb()
        debugger.reset()
        debugger.interaction(None, call.excinfo.tb)
        self.on_failure(time.monotonic())

    @pytest.hookimpl
    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        category = warning_message.category
        self.warnings.append(
            {
                "module": category.__module__,
                "category": category.__qualname__,
                "text": str(warning_message.message),
                "filename": warning_message.filename,
                "lineno": warning_message.lineno,
            }
        )

    @pytest.fixture
    def tmp_path(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The same folder on all ranks."""
        if self.folder is None:
            return tmp_path_factory.mktemp("test")
        Path(self.folder).mkdir(mode=0o700, exist_ok=True)
        return Path(self.folder)

    def _has_debugger(self) -> bool:
        with contextlib.suppress(RuntimeError):
            return world.current().rank == self._begin.rank_of_debugger
        return False


def refuse_breakpoint(*args: object, **kwargs: object) -> None:
    """Stands for breakpoint() on a rank that has no terminal."""
    raise RuntimeError(
        f"breakpoint() on rank {world.current().rank}: a rank has no terminal unless pytest is told "
        "which one has, as with --rank-pdb 0"
    )
