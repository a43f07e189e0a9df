"""Rank 2 is in C code that sleeps and holds Python's lock."""

import ctypes

import torch
import torch.distributed as dist
from expected import Finding

EXPECT = Finding("missing", (2,), ("call_driver", "Python's lock is held"))


def call_driver():
    ctypes.PyDLL(None).sleep(1000)


def job(rank):
    dist.all_reduce(torch.ones(4))
    if rank == 2:
        call_driver()
    dist.all_reduce(torch.ones(4))
