"""Rank 1 has destroyed its group when rank 0 receives from it."""

import time

import torch
import torch.distributed as dist
from expected import Errors

RANKS = 2
EXPECT = Errors((0,), ("rank 1", "left"))


def job(rank):
    dist.barrier()
    if rank == 0:
        time.sleep(1)
        dist.recv(torch.ones(4), 1)
