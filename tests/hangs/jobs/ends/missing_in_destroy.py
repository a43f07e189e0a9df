"""Rank 2 still works while the others have destroyed the group: nobody waits, so only a later call fails."""

import time

import torch
import torch.distributed as dist
from expected import Errors

EXPECT = Errors((2,), ("left",))


def job(rank):
    dist.all_reduce(torch.ones(4))
    if rank == 2:
        time.sleep(1)
        dist.all_reduce(torch.ones(4))
