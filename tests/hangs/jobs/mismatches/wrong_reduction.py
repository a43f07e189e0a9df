"""One rank takes the maximum."""

import torch
import torch.distributed as dist
from expected import Errors

EXPECT = Errors((0, 1, 2), ("SUM", "MAX"))


def job(rank):
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if rank == 2 else dist.ReduceOp.SUM)
