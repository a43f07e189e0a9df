"""Rank 2 does not call new_group."""

import time

import torch
import torch.distributed as dist
from expected import Finding

EXPECT = Finding("missing", (2,), ("new_group", "parse_options"))


def parse_options():
    time.sleep(1000)


def job(rank):
    dist.all_reduce(torch.ones(4))
    if rank == 2:
        parse_options()
    dist.new_group([0, 1, 2])
