"""Stand-ins for the base classes of PyTorch's own distributed tests, which run on ranks of the pool.

A suite changes one import:

    from vccl.testing.torch_cases import MultiProcessTestCase, MultiProcContinuousTest

Everything else of torch's classes stays: what they skip, which exit codes they expect, and the methods that a
suite overrides, such as ``_run`` and ``_init_pg``. Without pytest the classes start processes as torch's do.
"""

import contextlib
import dataclasses
import importlib
import multiprocessing
import os
import tempfile
import time
import unittest
from collections.abc import Callable
from typing import Any, ClassVar

from torch.testing._internal import common_distributed as upstream
from torch.testing._internal.common_distributed import TEST_SKIPS

from . import rank as rank_process
from .running import Outcome
from .session import RankFailed, running

_FAILED = upstream.MultiProcessTestCase.TEST_ERROR_EXIT_CODE
# torch's class sets it in the process of a rank.
_SHOW_STACKS = "TORCH_SHOW_CPP_STACKTRACES"


class _Ended:
    """A rank that has run the test, as much of multiprocessing.Process as torch's class uses."""

    def __init__(self, outcome: Outcome) -> None:
        self.pid = outcome.pid
        self.exitcode: int | None = outcome.status
        if outcome.done is not None:
            self.exitcode = outcome.done.result[0] if outcome.done.result else _FAILED

    def terminate(self) -> None:
        """Does nothing: the rank belongs to the pool."""


class MultiProcessTestCase(upstream.MultiProcessTestCase):
    """torch's class. Its methods run in the ranks of the pool instead of in new processes."""

    def _start_processes(self, proc: Any) -> None:
        if running() is None:
            super()._start_processes(proc)
        else:
            self.processes: list[Any] = []

    def _join_processes(self, fn: Callable[..., Any]) -> None:
        session = running()
        if session is None:
            super()._join_processes(fn)
            return
        __tracebackhide__ = True
        began = time.monotonic()
        options = {"fake_pg": getattr(self, "fake_pg", False)}
        cls = type(self)
        outcomes = session.outcomes(
            _run_case,
            (cls.__module__, cls.__qualname__, self._current_test_name(), self.file_name, options),
            size=int(self.world_size),
            timeout=float(upstream.get_timeout(self.id())),
        )
        self.processes = [_Ended(outcome) for outcome in outcomes]
        for outcome, process in zip(outcomes, self.processes, strict=True):
            if outcome.done is not None and process.exitcode == _FAILED:
                error = outcome.done.error or "\n".join(outcome.done.result[1])
                outcome.done = dataclasses.replace(outcome.done, error=error)
        if any(process.exitcode in (_FAILED, None) for process in self.processes):
            raise RankFailed(session.told(outcomes))
        self._check_return_codes(fn, time.monotonic() - began)
        # torch's class looks at the first rank only.
        codes = {process.exitcode for process in self.processes}
        if len(codes) > 1 and fn not in self.skip_return_code_checks:
            unexpected = [dataclasses.replace(outcome, ended_on_purpose=False) for outcome in outcomes]
            raise RankFailed(session.told(unexpected))


def _run_case(
    rank: int, size: int, store: Any, module: str, name: str, test: str, file: str, options: dict[str, Any]
) -> tuple[int, list[str]]:
    """Runs a test on a rank. Returns the exit code that its process would have, and what it sends."""
    cls: Any = _class_of(module, name)
    receiver, sender = multiprocessing.Pipe()
    code: Any = 0
    shown = os.environ.get(_SHOW_STACKS)
    try:
        cls._run(rank, test, file, sender, **options)
    except SystemExit as end:
        code = 0 if end.code is None else end.code if isinstance(end.code, int) else 1
    finally:
        if shown is None:
            os.environ.pop(_SHOW_STACKS, None)
    messages = []
    with contextlib.suppress(EOFError, OSError), receiver:
        sender.close()
        while receiver.poll():
            messages.append(receiver.recv())
    if code == _FAILED:
        rank_process.announce_failure()  # so that the other ranks need not wait for this one
    return code, messages


class MultiProcContinuousTest(upstream.MultiProcContinuousTest):
    """torch's class. The group is made for each test, so a failure does not skip the tests after it."""

    processes: ClassVar[list[Any]]
    task_queues: ClassVar[list[Any]]
    completion_queues: ClassVar[list[Any]]

    @classmethod
    def _spawn_processes(cls, world_size: int) -> None:
        if running() is None:
            super()._spawn_processes(world_size)
            return
        cls.processes, cls.task_queues, cls.completion_queues = [], [], []

    @classmethod
    def tearDownClass(cls) -> None:
        if running() is not None:
            cls._processes_spawned = False  # nothing waits for the end of the class
        super().tearDownClass()

    def _worker_run_main_wait(self, fn: Callable[..., Any]) -> Any:
        wait = super()._worker_run_main_wait(fn)

        def run() -> None:
            session = running()
            if session is None or self.rank != self.MAIN_PROCESS_RANK:
                wait()
                return
            __tracebackhide__ = True
            cls = type(self)
            with tempfile.TemporaryDirectory() as folder:
                skipped = session.results(
                    _run_continuous,
                    (cls.__module__, cls.__qualname__, self.id(), os.path.join(folder, "rendezvous")),
                    size=int(cls.world_size),
                    timeout=float(upstream.get_timeout(self.id())),
                )
            for reason in filter(None, skipped):
                raise unittest.SkipTest(reason)

        return run


def _run_continuous(rank: int, size: int, store: Any, module: str, name: str, test_id: str, file: str) -> str:
    """Runs a test on a rank, in the default group that its class makes. Returns why it was skipped, or ""."""
    cls: Any = _class_of(module, name)
    cls.rank, cls.world_size = rank, size
    try:
        cls._init_pg(rank, size, file)
        cls._run_test_given_id(test_id)
    except unittest.SkipTest as reason:
        return str(reason)
    except SystemExit as end:
        reasons = [skip.message for skip in TEST_SKIPS.values() if skip.exit_code == end.code]
        if not reasons:
            raise
        return str(reasons[0])
    return ""


def _class_of(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
