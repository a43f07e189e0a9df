"""Makes torchft use the cards, and go on after a replica has died in the middle of a step.

    from vccl.integrations.torchft import ProcessGroupVccl
    manager = torchft.Manager(pg=ProcessGroupVccl(timeout=timedelta(seconds=30)), ...)

torchft forgets a step whose collective has failed, and repeats it with those who are left or have come back.
Until then it goes on computing with what the collective has left behind. So this group aborts itself at a
failure, which lets the program read that, and takes part in nothing more until torchft configures it anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from vccl import vdev
from vccl.distributed import make_group
from vccl.integrations._needs import needs

needs("torchft", tried="0.2.0")

from torchft.process_group import ProcessGroupDummy, ProcessGroupWrapper  # noqa: E402


class _Work(dist.Work):
    """Waits for a collective on the host, and tells the group of a failure instead of raising it."""

    def __init__(self, group: ProcessGroupVccl, work: dist.Work) -> None:
        super().__init__()
        self._group = group
        self._work = work

    def wait(self, timeout: timedelta | None = None) -> bool:
        try:
            if timeout is None:
                self._work.wait()
            else:
                self._work.wait(timeout)
            vdev.current_stream().synchronize()
        except RuntimeError as error:
            self._group.fail(error)
        return True

    def get_future(self) -> torch.futures.Future:
        self.wait()
        done: torch.futures.Future = torch.futures.Future()
        done.set_result(None)
        return done


class ProcessGroupVccl(ProcessGroupWrapper):
    """A process group for torchft's Manager, which makes it anew for each quorum."""

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        super().__init__(timeout)
        self._failure: Exception | None = None

    def configure(self, *where: Any, **who: Any) -> None:
        """Makes the group of a quorum. Takes torchft's arguments."""
        if self._failure is not None:
            self._pg = self._failure = None
        super().configure(*where, **who)

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
        from vccl._C import ProcessGroupVccl as Backend

        options = Backend.Options()
        options._timeout = self._timeout
        backend = make_group(store, rank, world_size, options)
        group = dist.ProcessGroup(store, rank, world_size)
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        for device in ("vdev", "cpu"):
            group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, backend)
        return group

    @contextmanager
    def _run_context(self) -> Iterator[None]:
        """Surrounds each call. One that raises is a failure too: the others wait for this replica in it."""
        try:
            yield
        except Exception as error:
            self.fail(error)
            raise

    def _wrap_work(self, work: dist.Work, opts: object) -> dist.Work:
        return work if self._failure is not None else _Work(self, work)

    def fail(self, error: Exception) -> None:
        """Aborts the group. Its calls do nothing from now on."""
        if self._failure is None:
            self.abort()
            self._failure = error
            self._pg = ProcessGroupDummy(0, 1)

    def errored(self) -> Exception | None:
        """Returns the failure since the group was configured. torchft then forgets the step."""
        return self._failure

    def getBackendName(self) -> str:
        return "torchft-vccl"
