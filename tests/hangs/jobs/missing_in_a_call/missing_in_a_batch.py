"""Rank 2 answers only one of two messages of a batch."""

import time

import torch
import torch.distributed as dist
from expected import Finding

EXPECT = Finding("missing", (2,), ("recv", "forget"))


def forget():
    time.sleep(1000)


def job(rank):
    x = torch.ones(4)
    if rank == 0:
        exchange = [dist.P2POp(dist.isend, x, 2), dist.P2POp(dist.irecv, x.clone(), 2)]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
    if rank == 2:
        dist.recv(x, 0)
        forget()
