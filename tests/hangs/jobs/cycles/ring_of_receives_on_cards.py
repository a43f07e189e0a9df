"""Each rank receives on its card before it sends."""

import torch
import torch.distributed as dist
from expected import Errors

EXPECT = Errors((0, 1, 2), ("wait for each other", "rank 0: recv from rank 2"))


def job(rank):
    x = torch.ones(4, device=f"vdev:{rank}")
    dist.recv(x, (rank - 1) % 3)
    torch.accelerator.synchronize()
    dist.send(x, (rank + 1) % 3)
    torch.accelerator.synchronize()
