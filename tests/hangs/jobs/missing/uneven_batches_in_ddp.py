"""Rank 2 of DDP has one batch less."""

import time

import torch
from expected import Finding

EXPECT = Finding("missing", (2,), ("write_report",))


def write_report():
    time.sleep(1000)


def job(rank):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(4 - (rank == 2)):
        model(torch.ones(2, 4)).sum().backward()
    if rank == 2:
        write_report()
