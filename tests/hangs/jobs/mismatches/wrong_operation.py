"""One rank calls another collective."""

import torch
import torch.distributed as dist
from expected import Errors

EXPECT = Errors((0, 1, 2), ("all_reduce", "broadcast"))


def job(rank):
    if rank == 2:
        dist.broadcast(torch.ones(4), 0)
    else:
        dist.all_reduce(torch.ones(4))
