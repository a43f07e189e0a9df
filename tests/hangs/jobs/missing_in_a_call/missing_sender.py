"""Rank 2 never sends what rank 0 waits for."""

import time

import torch
import torch.distributed as dist
from expected import Finding

EXPECT = Finding("missing", (2,), ("recv", "compute_loss"))


def compute_loss():
    time.sleep(1000)


def job(rank):
    if rank == 2:
        compute_loss()
    if rank == 0:
        dist.recv(torch.ones(4), 2)
