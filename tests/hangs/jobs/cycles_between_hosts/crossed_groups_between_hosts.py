"""Two hosts use two groups in crossed order, and the ranks of each host agree."""

import torch
import torch.distributed as dist
from expected import Errors

RANKS = 4
HOSTS = [0, 0, 1, 1]
EXPECT = Errors((0, 1, 2, 3), ("wait for each other", "rank 0: all_reduce", "rank 2: all_reduce"))


def job(rank):
    groups = [dist.new_group([0, 1, 2, 3]) for _ in range(2)]
    first = HOSTS[rank]
    dist.all_reduce(torch.ones(4), group=groups[first])
    dist.all_reduce(torch.ones(4), group=groups[1 - first])
