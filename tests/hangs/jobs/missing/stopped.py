"""Rank 2 was stopped by SIGSTOP."""

import os
import signal

import torch
import torch.distributed as dist
from expected import Finding

EXPECT = Finding("stopped", (2,), ("SIGCONT",))


def job(rank):
    dist.all_reduce(torch.ones(4))
    if rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(4))
