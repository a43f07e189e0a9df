"""Two ranks reduce different dtypes."""

import torch
import torch.distributed as dist
from expected import Errors

EXPECT = Errors((0, 1, 2), ("float32", "float64"))


def job(rank):
    dist.all_reduce(torch.ones(4, dtype=torch.float64 if rank == 2 else torch.float32))
