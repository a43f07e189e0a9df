"""Rank 0 waits in a collective, and rank 2 on another host for a message of rank 0."""

import torch
import torch.distributed as dist
from expected import Errors

HOSTS = [0, 0, 1]
EXPECT = Errors((0, 2), ("wait for each other", "rank 0: all_reduce", "rank 2: recv from rank 0"))


def job(rank):
    x = torch.ones(4)
    if rank == 2:
        dist.recv(x, 0)
    dist.all_reduce(x)
    if rank == 0:
        dist.send(x, 2)
