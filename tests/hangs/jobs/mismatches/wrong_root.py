"""Two ranks name different roots."""

import torch
import torch.distributed as dist
from expected import Errors

EXPECT = Errors((0, 1, 2), ("broadcast", "root 0", "root 1"))


def job(rank):
    dist.broadcast(torch.ones(4), 0 if rank < 2 else 1)
