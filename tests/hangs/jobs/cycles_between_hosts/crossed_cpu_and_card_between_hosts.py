"""One host reduces on the CPU first, the other one on its card."""

import torch
import torch.distributed as dist
from expected import Errors

RANKS = 2
HOSTS = [0, 1]
EXPECT = Errors((0, 1), ("wait for each other", "on cpu", "on vdev"))


def job(rank):
    card = torch.ones(4, device=f"vdev:{rank}")
    dist.all_reduce(card)
    if rank == 0:
        dist.all_reduce(torch.ones(4))
    dist.all_reduce(card)
    card[0].item()
    dist.all_reduce(torch.ones(4))
