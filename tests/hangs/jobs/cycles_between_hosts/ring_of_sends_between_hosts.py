"""Each rank sends to the next one before it receives, and two hosts take part."""

import torch
import torch.distributed as dist
from expected import Errors

HOSTS = [0, 0, 1]
EXPECT = Errors((0, 1, 2), ("wait for each other", "rank 1: send to rank 2", "rank 2: send to rank 0"))


def job(rank):
    x = torch.ones(1 << 22)
    dist.send(x, (rank + 1) % 3)
    dist.recv(x, (rank - 1) % 3)
