"""Each rank's batch receives twice and sends once."""

import torch
import torch.distributed as dist
from expected import Errors

RANKS = 2
EXPECT = Errors((0, 1), ("wait for each other", "recv from"))


def job(rank):
    x = torch.ones(4)
    exchange = [dist.P2POp(dist.isend, x, 1 - rank)]
    exchange += [dist.P2POp(dist.irecv, x.clone(), 1 - rank) for _ in range(2)]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
