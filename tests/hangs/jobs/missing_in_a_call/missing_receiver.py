"""Rank 2 never receives what rank 0 sends."""

import time

import torch
import torch.distributed as dist
from expected import Finding

EXPECT = Finding("missing", (2,), ("send", "compute_loss"))


def compute_loss():
    time.sleep(1000)


def job(rank):
    if rank == 2:
        compute_loss()
    if rank == 0:
        dist.send(torch.ones(1 << 22), 2)
