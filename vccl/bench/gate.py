"""Lets all ranks go at the same moment, at no cost to the backend that is measured."""

import mmap
import os
import tempfile

import torch
import torch.distributed as dist

from vccl import _C


class Gate:
    """A barrier over a page that all ranks map. A rank that comes early looks for the others for a moment,
    then sleeps until the last one wakes it. Ranks that share no machine use the control group's barrier.

    A barrier of the measured backend would let the ranks go at moments that differ by its own latency. One
    that yields to wait forfeits what the scheduler grants the rank, and a backend whose other threads have to
    run then looks slow; one that only sleeps starts every call on a cold core. One in Python is in the way of
    ranks that are not done yet, where these outnumber cores.
    """

    TIMEOUT = 600.0  # seconds
    LOOK = 200e-6  # seconds awake, where every rank has a core to itself

    def __init__(self, control: dist.ProcessGroup) -> None:
        self.control = control
        self.look = self.LOOK if control.size() <= len(os.sched_getaffinity(0)) else 0.0
        page = self._map_page()
        self.barrier = _C._HostBarrier(page, control.size()) if page is not None else None

    @property
    def one_clock(self) -> bool:
        """Whether all ranks are on one machine, where perf_counter is the same clock in all processes."""
        return self.barrier is not None

    def wait(self) -> None:
        """Returns once every rank has called it as often as we have."""
        if self.barrier is None:
            dist.barrier(self.control)
            return
        try:
            self.barrier.wait(self.look, self.TIMEOUT)
        except TimeoutError as error:
            rank = self.control.rank()
            raise TimeoutError(f"rank {rank}: no sign of another rank for {self.TIMEOUT} s") from error

    def _map_page(self) -> mmap.mmap | None:
        """The page, whose name is gone by then; None if some rank cannot open what rank 0 has made."""
        length = mmap.PAGESIZE
        file = tempfile.NamedTemporaryFile(prefix="vccl-bench-") if self.control.rank() == 0 else None  # noqa: SIM115
        if file:
            file.truncate(length)
        identity = [(file.name, os.fstat(file.fileno()).st_ino) if file else None]
        dist.broadcast_object_list(identity, group_src=0, group=self.control)
        page = self._open(*identity[0], length)
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
