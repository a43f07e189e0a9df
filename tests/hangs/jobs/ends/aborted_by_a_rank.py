"""Rank 2 aborts the group."""

import torch
import torch.distributed as dist
from expected import Errors

EXPECT = Errors((0, 1), ("rank 2", "abort"))


def job(rank):
    dist.all_reduce(torch.ones(4))
    if rank == 2:
        dist.distributed_c10d._abort_process_group()
    else:
        dist.all_reduce(torch.ones(4))
