"""Rank 2 has one batch less, and then waits for input."""

import time

import torch
import torch.distributed as dist
from expected import Finding

EXPECT = Finding("missing", (2,), ("wait_for_input",))


def wait_for_input():
    while True:
        time.sleep(1)


def job(rank):
    for _ in range(5 - (rank == 2)):
        dist.all_reduce(torch.ones(4))
    if rank == 2:
        wait_for_input()
