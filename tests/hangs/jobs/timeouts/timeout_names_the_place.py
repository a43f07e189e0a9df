"""Rank 2 sleeps, and the timeout's text says where."""

import time

import torch
import torch.distributed as dist
from expected import Errors

TIMEOUT = 3
EXPECT = Errors((0, 1), ("waited 3 s for rank 2", "Rank 2 sleeps in tokenize"))


def tokenize():
    time.sleep(1000)


def job(rank):
    dist.all_reduce(torch.ones(4))
    if rank == 2:
        tokenize()
    dist.all_reduce(torch.ones(4))
