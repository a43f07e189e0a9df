"""Two groups are used in crossed order."""

import torch
import torch.distributed as dist
from expected import Errors

RANKS = 2
EXPECT = Errors((0, 1), ("wait for each other", "rank 0: all_reduce", "rank 1: all_reduce"))


def job(rank):
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    dist.all_reduce(torch.ones(4), group=groups[rank])
    dist.all_reduce(torch.ones(4), group=groups[1 - rank])
