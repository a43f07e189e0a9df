"""Rank 2 was stopped before it sends."""

import os
import signal

import torch
import torch.distributed as dist
from expected import Finding

EXPECT = Finding("stopped", (2,), ("recv",))


def job(rank):
    if rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    if rank == 0:
        dist.recv(torch.ones(4), 2)
