"""Two stages of a pipeline both wait for the other's activation."""

import torch
import torch.distributed as dist
from expected import Errors

RANKS = 2
EXPECT = Errors((0, 1), ("wait for each other",))


def job(rank):
    x = torch.ones(8, device=f"vdev:{rank}")
    for _ in range(2):
        dist.recv(x, 1 - rank, tag=rank)
        torch.accelerator.synchronize()
        dist.send(x, 1 - rank, tag=1 - rank)
