"""Rank 2 ends by an exception, and leaves the group."""

import torch
import torch.distributed as dist
from expected import Errors

EXPECT = Errors((0, 1), ("rank 2",))


def job(rank):
    dist.all_reduce(torch.ones(4))
    if rank == 2:
        raise ValueError("a bad sample")
    dist.all_reduce(torch.ones(4))
