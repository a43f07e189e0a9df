"""Rank 2, which counts as on another host, is killed."""

import os
import signal

import torch
import torch.distributed as dist
from expected import Errors

HOSTS = [0, 0, 1]
EXPECT = Errors((0, 1), ("rank 2",))


def job(rank):
    dist.all_reduce(torch.ones(4))
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))
