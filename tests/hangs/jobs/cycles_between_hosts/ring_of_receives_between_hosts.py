"""Each rank receives before it sends, and each counts as on a host of its own."""

import torch
import torch.distributed as dist
from expected import Errors

HOSTS = [0, 1, 2]
EXPECT = Errors((0, 1, 2), ("wait for each other", "rank 0: recv from rank 2", "rank 1: recv from rank 0"))


def job(rank):
    x = torch.ones(4)
    dist.recv(x, (rank - 1) % 3)
    dist.send(x, (rank + 1) % 3)
