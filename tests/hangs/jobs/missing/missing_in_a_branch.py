"""Rank 2 takes a branch without the collective, and evaluates."""

import time

import torch
import torch.distributed as dist
from expected import Finding

EXPECT = Finding("missing", (2,), ("evaluate",))


def evaluate():
    time.sleep(1000)


def job(rank):
    x = torch.ones(4)
    dist.all_reduce(x)
    if rank == 2:
        evaluate()
    dist.all_reduce(x)
