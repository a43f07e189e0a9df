"""Each rank receives before it sends."""

import torch
import torch.distributed as dist
from expected import Errors

EXPECT = Errors((0, 1, 2), ("wait for each other", "rank 0: recv from rank 2"))


def job(rank):
    x = torch.ones(4)
    dist.recv(x, (rank - 1) % 3)
    dist.send(x, (rank + 1) % 3)
