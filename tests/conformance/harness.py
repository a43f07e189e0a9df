"""Runs the suite's tests, each in freshly forked ranks.

Upstream spawns its ranks: each imports torch anew, which costs more than the tests do. A fork of a process
that has imported everything, and has neither started a thread nor touched a card, is as fresh, and costs
milliseconds.
"""

import os
import signal
import time
import traceback
import types
import unittest
from collections.abc import Callable, Iterable, Iterator

from vccl.launch import forks


def make_case(module: types.ModuleType, tests: type) -> type:
    """A TestCase that runs the methods of `tests` (the _DistTestBase of the suite, say) in forked ranks."""
    import torch

    class Conformance(module.TestDistBackend, tests):
        def setUp(self) -> None:
            super().setUp()
            # Set by the base class, for a file of this test; the module has read it once, when imported.
            module.INIT_METHOD = os.environ["INIT_METHOD"]
            # Without this the bodies are never run, and every test passes.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def tearDown(self) -> None:
            processes = self.processes
            super().tearDown()
            for process in processes:
                process.kill()
                process.join()
            end_orphans()
            if os.path.exists(self.file_name):
                os.remove(self.file_name)

        def _check_return_codes(self, fn: Callable, elapsed_time: float) -> None:
            codes = [process.exitcode for process in self.processes]
            # Upstream looks at all ranks for exceptions, but only at the first for any other end.
            failed = None in codes or self.TEST_ERROR_EXIT_CODE in codes
            if not failed and fn not in self.skip_return_code_checks and len(set(codes)) > 1:
                raise AssertionError(f"the ranks ended differently: exit codes {codes}")
            super()._check_return_codes(fn, elapsed_time)

    # Upstream asks for it in setUp, and it has to be a method of the class.
    if not hasattr(Conformance, "test_ddp_has_finalized"):
        Conformance.test_ddp_has_finalized = _Wrapped()
    return Conformance


class _Wrapped:
    """Stands for a decorated test in classes that lack it."""

    __wrapped__ = None


def end_orphans() -> None:
    """Kills and reaps every child that this process has left."""
    while True:
        try:
            if not (children := forks.children()):
                return
            for pid in children:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            continue


def names(case: type) -> list[str]:
    return [name for name in unittest.TestLoader().getTestCaseNames(case) if callable(getattr(case, name))]


class _Result(unittest.TestResult):
    """The outcome of the one test that is run with it."""

    outcome, text = "passed", ""

    def _failed(self, test: unittest.TestCase, error: tuple) -> None:
        self.outcome, self.text = "failed", "".join(traceback.format_exception(*error))

    addError = addFailure = _failed

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.outcome, self.text = "skipped", reason


def run(case: type, selected: Iterable[str]) -> Iterator[dict]:
    """Runs tests one after another; yields {test, outcome, text, seconds} for each."""
    for name in selected:
        start = time.monotonic()
        result = _Result()
        case(name).run(result)
        yield {
            "test": name,
            "outcome": result.outcome,
            "text": result.text,
            "seconds": round(time.monotonic() - start, 2),
        }
