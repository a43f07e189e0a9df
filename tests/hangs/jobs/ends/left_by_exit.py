"""Rank 2 exits without a word."""

import os

import torch
import torch.distributed as dist
from expected import Errors

EXPECT = Errors((0, 1), ("rank 2",))


def job(rank):
    dist.all_reduce(torch.ones(4))
    if rank == 2:
        os._exit(0)
    dist.all_reduce(torch.ones(4))
