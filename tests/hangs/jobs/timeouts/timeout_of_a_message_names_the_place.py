"""Rank 2 sleeps, and the timeout of the receive says where."""

import time

import torch
import torch.distributed as dist
from expected import Errors

TIMEOUT = 3
EXPECT = Errors((0,), ("waited 3 s for rank 2 to send", "Rank 2 sleeps in tokenize"))


def tokenize():
    time.sleep(1000)


def job(rank):
    if rank == 2:
        tokenize()
    if rank == 0:
        dist.recv(torch.ones(4), 2)
