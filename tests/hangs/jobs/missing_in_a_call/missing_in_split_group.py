"""Rank 2 does not call split_group, and the others use the new group."""

import time

import torch
import torch.distributed as dist
from expected import Finding

EXPECT = Finding("missing", (2,), ("plan",))


def plan():
    time.sleep(1000)


def job(rank):
    dist.all_reduce(torch.ones(4, device=f"vdev:{rank}"))
    torch.accelerator.synchronize()
    if rank == 2:
        plan()
    group = dist.split_group(split_ranks=[[0, 1, 2]])
    dist.all_reduce(torch.ones(4, device=f"vdev:{rank}"), group=group)
    torch.accelerator.synchronize()
