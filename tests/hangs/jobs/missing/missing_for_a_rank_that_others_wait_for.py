"""Rank 0 waits for rank 1, which waits for rank 2, which sleeps."""

import time

import torch
import torch.distributed as dist
from expected import Finding

EXPECT = Finding("missing", (2,), ("prepare",))


def prepare():
    time.sleep(1000)


def job(rank):
    pair = dist.new_group([1, 2])
    if rank == 2:
        prepare()
    if rank == 1:
        dist.all_reduce(torch.ones(4), group=pair)
    dist.all_reduce(torch.ones(4))
