"""Four ranks on two hosts wait for each other, and each host has a wait inside."""

import torch
import torch.distributed as dist
from expected import Errors

RANKS = 4
HOSTS = [0, 0, 1, 1]
EXPECT = Errors((0, 1, 2, 3), ("wait for each other", "rank 0: recv from rank 1", "rank 1: recv from rank 2"))


def job(rank):
    x = torch.ones(4)
    dist.recv(x, (rank + 1) % 4)
    dist.send(x, (rank - 1) % 4)
