"""Rank 2 sleeps, and the timeout of new_group says where."""

import time

import torch.distributed as dist
from expected import Errors

TIMEOUT = 4
EXPECT = Errors((0, 1), ("rank 2 did not join", "Rank 2 sleeps in tokenize"))


def tokenize():
    time.sleep(1000)


def job(rank):
    if rank == 2:
        tokenize()
    dist.new_group([0, 1, 2])
