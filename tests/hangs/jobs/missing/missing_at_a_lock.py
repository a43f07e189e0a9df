"""Rank 2 waits for a lock that it holds itself."""

import threading

import torch
import torch.distributed as dist
from expected import Finding

EXPECT = Finding("missing", (2,), ("update_statistics",))


lock = threading.Lock()


def update_statistics():
    with lock, lock:
        pass


def job(rank):
    dist.all_reduce(torch.ones(4))
    if rank == 2:
        update_statistics()
    dist.all_reduce(torch.ones(4))
