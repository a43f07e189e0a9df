"""Two ranks on two hosts receive from any source."""

import torch
import torch.distributed as dist
from expected import Errors

RANKS = 2
HOSTS = [0, 1]
EXPECT = Errors((0, 1), ("wait for each other", "recv from any source"))


def job(rank):
    x = torch.ones(4)
    dist.recv(x)
    dist.send(x, 1 - rank)
