"""Started ranks, kept for the whole session: importing torch costs seconds, a collective microseconds."""

import itertools
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Pipe
from typing import Any

import torch.distributed as dist

HERE = pathlib.Path(__file__).parent
# Seconds. No test passes or fails by these, however slow the machine is: a failure that is noticed comes long
# before them, and what hangs ends with the call. A group's timeout that is to expire is set by the test.
GROUP_TIMEOUT = 1800
CALL_TIMEOUT = 300


class RankFailed(AssertionError):
    """A rank raised, died or did not answer in time; the text holds every rank's traceback."""


class Rank:
    """One worker process and the pipe to it."""

    def __init__(self, port: int) -> None:
        self.pipe, theirs = Pipe()
        path = os.pathsep.join([str(HERE), *sys.path])
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "rank_worker.py"), str(theirs.fileno()), str(port)],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        theirs.close()

    def stop(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.wait()


class RankPool:
    """Runs a function on several ranks at once. Ranks start when first needed, and anew after they broke."""

    def __init__(self) -> None:
        self._ranks: list[Rank] = []
        self._calls = itertools.count()
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def run(
        self,
        size: int,
        function: Callable[..., Any],
        *args: Any,
        hosts: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        group: bool = True,
        group_timeout: float = GROUP_TIMEOUT,
        dying: Sequence[int] = (),
        timeout: float = CALL_TIMEOUT,
    ) -> list[Any]:
        """Calls ``function(rank, size, *args)`` on `size` ranks, inside a default group; returns the results.

        Args:
            function: a function at the top of a test module.
            hosts: the pretended host of each rank (VCCL_HOSTID).
            env: environment variables of all ranks during the call.
            group: False: makes no default group and calls ``function(rank, size, store, *args)``.
            group_timeout: of the default group, in seconds.
            dying: ranks that end during the call; None stands in for what they return.
            timeout: bound of the whole call in seconds.

        Raises:
            RankFailed: any rank raised, died although it is not in `dying`, or did not answer in time.
        """
        __tracebackhide__ = True
        self._ranks = [rank for rank in self._ranks if rank.process.poll() is None]
        while len(self._ranks) < size:
            self._ranks.append(Rank(self._store.port))
        prefix = f"call_{next(self._calls)}"
        for rank in range(size):
            self._ranks[rank].pipe.send(
                {
                    "module": function.__module__,
                    "name": function.__qualname__,
                    "args": args,
                    "rank": rank,
                    "size": size,
                    "prefix": prefix,
                    "env": {**(env or {}), **({"VCCL_HOSTID": hosts[rank]} if hosts else {})},
                    "group": group,
                    "group_timeout": group_timeout,
                }
            )
        deadline = time.monotonic() + timeout
        answers = [self._answer(rank, deadline) for rank in range(size)]
        for rank in reversed(range(size)):
            if answers[rank][0] in ("died", "silent"):
                self._ranks.pop(rank).stop()
        failures = [
            f"--- rank {rank} {kind} ---\n{value}"
            for rank, (kind, value) in enumerate(answers)
            if kind != "done" and not (kind == "died" and rank in dying)
        ]
        if failures:
            raise RankFailed("\n".join(failures))
        return [value for _, value in answers]

    def _answer(self, rank: int, deadline: float) -> tuple[str, Any]:
        worker = self._ranks[rank]
        try:
            if worker.pipe.poll(max(0.0, deadline - time.monotonic())):
                return worker.pipe.recv()
        except (EOFError, ConnectionError):
            return "died", None
        worker.process.send_signal(signal.SIGUSR1)  # its stacks, on stderr
        time.sleep(0.5)
        return "silent", "no answer in time; its stacks are on stderr"

    def close(self) -> None:
        for rank in self._ranks:
            rank.stop()
        self._ranks.clear()
