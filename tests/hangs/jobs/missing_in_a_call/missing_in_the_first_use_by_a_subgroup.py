"""Rank 3 does not come to its group's first collective on cards. Ranks 0 and 1 have nothing to do with it."""

import time

import torch
import torch.distributed as dist
from expected import Finding

RANKS = 4
EXPECT = Finding("missing", (3,), ("first use of a card", "plan"))


def plan():
    time.sleep(1000)


def job(rank):
    x = torch.ones(4, device=f"vdev:{rank}")
    dist.all_reduce(x)
    pair = dist.new_group([2, 3], group_desc="pair")
    torch.accelerator.synchronize()
    if rank == 3:
        plan()
    if rank == 2:
        dist.all_reduce(x, group=pair)
    time.sleep(1000)
