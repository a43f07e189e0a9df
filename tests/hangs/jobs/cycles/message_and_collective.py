"""Rank 0 waits in a collective, and rank 1 for a message of rank 0."""

import torch
import torch.distributed as dist
from expected import Errors

RANKS = 2
EXPECT = Errors((0, 1), ("wait for each other", "rank 0: all_reduce", "rank 1: recv from rank 0"))


def job(rank):
    x = torch.ones(4)
    if rank == 0:
        dist.all_reduce(x)
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
        dist.all_reduce(x)
