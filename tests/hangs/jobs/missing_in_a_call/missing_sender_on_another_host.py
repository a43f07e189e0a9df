"""Rank 2, which counts as on another host, never sends."""

import time

import torch
import torch.distributed as dist
from expected import Finding

HOSTS = [0, 0, 1]
EXPECT = Finding("missing", (2,), ("fetch",))


def fetch():
    time.sleep(1000)


def job(rank):
    if rank == 2:
        fetch()
    if rank == 0:
        dist.recv(torch.ones(4), 2)
