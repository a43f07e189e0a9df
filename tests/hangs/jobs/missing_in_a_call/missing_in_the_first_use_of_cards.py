"""Rank 2 does not come to the first collective on cards, for which a communicator is made."""

import time

import torch
import torch.distributed as dist
from expected import Finding

EXPECT = Finding("missing", (2,), ("warm_up",))


def warm_up():
    time.sleep(1000)


def job(rank):
    dist.all_reduce(torch.ones(4))
    if rank == 2:
        warm_up()
    dist.all_reduce(torch.ones(4, device=f"vdev:{rank}"))
    torch.accelerator.synchronize()
