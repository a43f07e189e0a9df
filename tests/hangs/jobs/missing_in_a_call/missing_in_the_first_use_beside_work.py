"""Rank 3 does not come to the first collective on cards of its group, while ranks 0 and 1 go on working."""

import time

import torch
import torch.distributed as dist
from expected import Finding

RANKS = 4
EXPECT = Finding("missing", (3,), ("first use of a card", "plan"))


def plan():
    time.sleep(1000)


def job(rank):
    working, pair = dist.new_group([0, 1]), dist.new_group([2, 3], group_desc="pair")
    if rank == 3:
        plan()
    if rank == 2:
        dist.all_reduce(torch.ones(4, device=f"vdev:{rank}"), group=pair)
    while True:
        dist.all_reduce(torch.ones(4), group=working)
        time.sleep(0.05)
