"""Rank 0 sends with one tag, and rank 1 on another host receives with another."""

import torch
import torch.distributed as dist
from expected import Errors

RANKS = 2
HOSTS = [0, 1]
EXPECT = Errors((0, 1), ("wait for each other", "tag 3 in", "with tag 5", "not been received: 1 with tag 3"))


def job(rank):
    x = torch.ones(1 << 22)
    if rank == 0:
        dist.send(x, 1, tag=3)
    if rank == 1:
        dist.recv(x, 0, tag=5)
