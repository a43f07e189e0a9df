"""Rank 2 waits for a key of the store that nobody sets."""

import torch
import torch.distributed as dist
from expected import Finding

EXPECT = Finding("missing", (2,), ("read_configuration",))


def read_configuration():
    dist.distributed_c10d._get_default_store().wait(["configuration"])


def job(rank):
    dist.all_reduce(torch.ones(4))
    if rank == 2:
        read_configuration()
    dist.all_reduce(torch.ones(4))
