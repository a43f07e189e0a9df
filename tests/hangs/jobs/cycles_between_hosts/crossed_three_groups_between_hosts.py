"""Three groups of two hosts each are used in a circle."""

import torch
import torch.distributed as dist
from expected import Errors

HOSTS = [0, 1, 2]
EXPECT = Errors((0, 1, 2), ("wait for each other", "rank 0: all_reduce", "rank 2: all_reduce"))


def job(rank):
    groups = [dist.new_group(pair) for pair in ([0, 1], [1, 2], [0, 2])]
    first, second = {0: (0, 2), 1: (1, 0), 2: (2, 1)}[rank]
    dist.all_reduce(torch.ones(4), group=groups[first])
    dist.all_reduce(torch.ones(4), group=groups[second])
