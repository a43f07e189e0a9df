"""Rank 1 waits for rank 0's broadcast, and rank 0, on another host, first for a message of rank 1."""

import torch
import torch.distributed as dist
from expected import Errors

HOSTS = [0, 1, 2]
EXPECT = Errors((0, 1), ("wait for each other", "rank 0: recv from rank 1", "rank 1: broadcast"))


def job(rank):
    x = torch.ones(4)
    if rank == 0:
        dist.recv(x, 1)
    dist.broadcast(x, 0)
    if rank == 1:
        dist.send(x, 0)
