"""Lets all ranks go at the same moment, at no cost to the backend that is measured."""

import ctypes
import mmap
import os
import tempfile
import time

import torch
import torch.distributed as dist

LINE = 64  # bytes a rank: no two ranks write to one cache line
FUTEX_WAIT, FUTEX_WAKE = 0, 1
SYS_FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)
EVERYBODY = 2**31 - 1
LIBC = ctypes.CDLL(None)


class Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Gate:
    """A barrier over a page that all ranks map. A rank that comes early looks for the others for a moment,
    then sleeps until the last one wakes it. Ranks that share no machine use the control group's barrier.

    A barrier of the measured backend would let the ranks go at moments that differ by its own latency. One
    that yields to wait forfeits what the scheduler grants the rank, and a backend whose other threads have to
    run then looks slow; one that only sleeps starts every call on a cold core.
    """

    TIMEOUT = 600.0  # seconds
    LOOK = 200e-6  # seconds awake, where every rank has a core to itself
    SLICE = 2_000_000  # nanoseconds of one sleep

    def __init__(self, control: dist.ProcessGroup) -> None:
        self.control = control
        self.rank = control.rank()
        self.turn = 0
        self.look = self.LOOK if control.size() <= len(os.sched_getaffinity(0)) else 0.0
        self.page = self._map_page()
        if self.page is not None:
            words = memoryview(self.page).cast("I")
            step = LINE // 4
            self.arrived = [words[rank * step : rank * step + 1] for rank in range(control.size())]
            self.opened = words[control.size() * step :]  # the last turn that everybody has come to
            # Made once: where ranks outnumber cores, this one's Python is in the way of those not done yet.
            self.word = ctypes.byref(ctypes.c_uint32.from_buffer(self.page, LINE * control.size()))
            self.patience = ctypes.byref(Timespec(0, self.SLICE))

    @property
    def one_clock(self) -> bool:
        """Whether all ranks are on one machine, where perf_counter is the same clock in all processes."""
        return self.page is not None

    def wait(self) -> None:
        """Returns once every rank has called it as often as we have."""
        if self.page is None:
            dist.barrier(self.control)
            return
        self.turn += 1
        self.arrived[self.rank][0] = self.turn
        begin = time.monotonic()
        while self.opened[0] < self.turn:
            if all(line[0] >= self.turn for line in self.arrived):
                self.opened[0] = self.turn
                self._futex(FUTEX_WAKE, EVERYBODY)
                return
            waited = time.monotonic() - begin
            if waited > self.TIMEOUT:
                raise TimeoutError(f"rank {self.rank}: no sign of another rank for {self.TIMEOUT} s")
            if waited > self.look:
                # Two may each miss the other's arrival: a sleep has to end by itself.
                self._futex(FUTEX_WAIT, self.turn - 1)

    def _futex(self, operation: int, value: int) -> None:
        LIBC.syscall(SYS_FUTEX, self.word, operation, ctypes.c_uint32(value), self.patience)

    def _map_page(self) -> mmap.mmap | None:
        """The page, whose name is gone by then; None if some rank cannot open what rank 0 has made."""
        length = LINE * (self.control.size() + 1)
        file = tempfile.NamedTemporaryFile(prefix="vccl-bench-") if self.rank == 0 else None  # noqa: SIM115
        if file:
            file.truncate(length)
        identity = [(file.name, os.fstat(file.fileno()).st_ino) if file else None]
        dist.broadcast_object_list(identity, group_src=0, group=self.control)
        page = self._open(*identity[0], length) if SYS_FUTEX else None
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
