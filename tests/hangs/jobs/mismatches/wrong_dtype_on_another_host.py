"""Two ranks on different hosts reduce different dtypes."""

import torch
import torch.distributed as dist
from expected import Errors

RANKS = 2
HOSTS = [0, 1]
EXPECT = Errors((0, 1), ("float32", "float64"))


def job(rank):
    dist.all_reduce(torch.ones(4, dtype=torch.float64 if rank == 1 else torch.float32))
