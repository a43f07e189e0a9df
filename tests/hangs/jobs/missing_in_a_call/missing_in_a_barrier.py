"""Rank 2 does not come to a barrier."""

import time

import torch.distributed as dist
from expected import Finding

EXPECT = Finding("missing", (2,), ("barrier", "skip_barrier"))


def skip_barrier():
    time.sleep(1000)


def job(rank):
    dist.barrier()
    if rank == 2:
        skip_barrier()
    dist.barrier()
