"""Rank 2 sleeps in time.sleep before a collective on cards."""

import time

import torch
import torch.distributed as dist
from expected import Finding

EXPECT = Finding("missing", (2,), ("wait_a_while",))


def wait_a_while():
    time.sleep(1000)


def job(rank):
    x = torch.ones(4, device=f"vdev:{rank}")
    dist.all_reduce(x)
    torch.accelerator.synchronize()
    if rank == 2:
        wait_a_while()
    dist.all_reduce(x)
    torch.accelerator.synchronize()
