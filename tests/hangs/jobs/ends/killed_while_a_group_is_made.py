"""Rank 2 is killed while the others make a group."""

import os
import signal

import torch.distributed as dist
from expected import Errors

EXPECT = Errors((0, 1), ("rank 2", "died"))


def job(rank):
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.new_group([0, 1, 2])
