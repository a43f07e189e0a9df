"""Rank 0 sends to rank 1, which waits for rank 2, which waits for rank 0."""

import torch
import torch.distributed as dist
from expected import Errors

EXPECT = Errors((0, 1, 2), ("wait for each other",))


def job(rank):
    x = torch.ones(1 << 22)
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, (rank + 1) % 3)
