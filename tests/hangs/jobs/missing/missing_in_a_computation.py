"""Rank 2 computes for ever."""

import torch
import torch.distributed as dist
from expected import Finding

EXPECT = Finding("missing", (2,), ("search", "computes"))


def search():
    number = 0
    while True:
        number += 1


def job(rank):
    dist.all_reduce(torch.ones(4))
    if rank == 2:
        search()
    dist.all_reduce(torch.ones(4))
