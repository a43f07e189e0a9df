"""A hook of rank 2 sleeps in the midst of a backward on a card."""

import time

import torch
import torch.distributed as dist
from expected import Finding

EXPECT = Finding("missing", (2,), ("scale_gradient",))


def scale_gradient(gradient):
    time.sleep(1000)
    return gradient


def job(rank):
    x = torch.ones(4, device=f"vdev:{rank}", requires_grad=True)
    y = x * 2
    if rank == 2:
        y.register_hook(scale_gradient)
    y.sum().backward()
    dist.all_reduce(x.grad)
    torch.accelerator.synchronize()
