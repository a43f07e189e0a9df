"""Lets all ranks go at the same moment, without a cost for the backend that is measured."""

import mmap
import os
import tempfile
from typing import Any

import torch
import torch.distributed as dist

from vccl import _C


class Gate:
    """Is a barrier over a page that all ranks map.

    A rank that comes early looks for the others for a moment, and then sleeps until the last one wakes it.
    Ranks on several machines use the barrier of the control group.

    Other barriers would spoil the measurement. A barrier of the measured backend lets the ranks go at
    moments that differ by its own latency. A barrier that yields uses up the time that the scheduler grants
    the rank, so that a backend with further threads looks slow. A barrier that only sleeps starts every
    call on a cold core. A barrier in Python takes cores from ranks that are not done yet, if ranks
    outnumber cores.
    """

    TIMEOUT = 600.0  # seconds
    LOOK = 200e-6  # seconds awake, if every rank has a core to itself

    def __init__(self, control: dist.ProcessGroup) -> None:
        self.control = control
        self.look = self.LOOK if control.size() <= len(os.sched_getaffinity(0)) else 0.0
        page = self._map_page()
        self.barrier = _C._HostBarrier(page, control.size()) if page is not None else None

    @property
    def one_clock(self) -> bool:
        """Returns whether all ranks are on one machine, where perf_counter is one clock for all processes."""
        return self.barrier is not None

    def wait(self) -> None:
        """Blocks until every rank has called it as often as this one."""
        if self.barrier is None:
            dist.barrier(self.control)
            return
        try:
            self.barrier.wait(self.look, self.TIMEOUT)
        except TimeoutError as error:
            rank = self.control.rank()
            raise TimeoutError(f"rank {rank}: no sign of another rank for {self.TIMEOUT} s") from error

    def _map_page(self) -> mmap.mmap | None:
        """Returns a page that all ranks map, or None if some rank cannot open the file of rank 0.

        The file is deleted by then.
        """
        length = mmap.PAGESIZE
        file = tempfile.NamedTemporaryFile(prefix="vccl-bench-") if self.control.rank() == 0 else None  # noqa: SIM115
        if file:
            file.truncate(length)
        identity: list[Any] = [(file.name, os.fstat(file.fileno()).st_ino) if file else None]
        dist.broadcast_object_list(identity, group_src=0, group=self.control)
        name, inode = identity[0]
        page = self._open(name, inode, length)
        opened = torch.tensor(page is not None, dtype=torch.int32)
        dist.all_reduce(opened, op=dist.ReduceOp.MIN, group=self.control)
        if file:
            file.close()
        return page if opened.item() else None

    @staticmethod
    def _open(name: str, inode: int, length: int) -> mmap.mmap | None:
        try:
            with open(name, "r+b") as file:
                if os.fstat(file.fileno()).st_ino != inode:
                    return None
                return mmap.mmap(file.fileno(), length)
        except OSError:
            return None
