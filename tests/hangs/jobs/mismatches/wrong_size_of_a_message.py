"""The receiver expects another size."""

import torch
import torch.distributed as dist
from expected import Errors

RANKS = 2
EXPECT = Errors((0, 1), ("4 elements", "5 elements"))


def job(rank):
    if rank == 0:
        dist.send(torch.ones(4), 1)
        dist.barrier()
    else:
        dist.recv(torch.ones(5), 0)
