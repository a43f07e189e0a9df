"""Rank 2 is killed before it sends."""

import os
import signal

import torch
import torch.distributed as dist
from expected import Errors

EXPECT = Errors((0,), ("rank 2", "died"))


def job(rank):
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        dist.recv(torch.ones(4), 2)
