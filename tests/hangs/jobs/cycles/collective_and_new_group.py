"""Rank 0 makes a group while rank 1 waits in a collective."""

import torch
import torch.distributed as dist
from expected import Finding

RANKS = 2
EXPECT = Finding("cycle", (0, 1))


def job(rank):
    dist.all_reduce(torch.ones(4))
    if rank == 0:
        dist.new_group([0, 1])
    dist.all_reduce(torch.ones(4))
