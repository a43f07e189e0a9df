"""Ranks 1 to 3 validate, and rank 0 waits for them."""

import time

import torch
import torch.distributed as dist
from expected import Finding

RANKS = 4
EXPECT = Finding("missing", (1, 2, 3), ("Each of ranks 1, 2, 3", "validate"))


def validate():
    time.sleep(1000)


def job(rank):
    dist.all_reduce(torch.ones(4))
    if rank > 0:
        validate()
    dist.all_reduce(torch.ones(4))
