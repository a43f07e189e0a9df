"""A finalizer of rank 2 sleeps."""

import time
import weakref

import torch
import torch.distributed as dist
from expected import Finding

EXPECT = Finding("missing", (2,), ("close_file",))


class Thing:
    pass


def close_file():
    time.sleep(1000)


def job(rank):
    dist.all_reduce(torch.ones(4))
    if rank == 2:
        thing = Thing()
        weakref.finalize(thing, close_file)
        del thing
    dist.all_reduce(torch.ones(4))
