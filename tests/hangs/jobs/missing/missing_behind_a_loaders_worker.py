"""A worker of the DataLoader of rank 2 gives nothing, and rank 2 waits for it."""

import time

import torch
import torch.distributed as dist
import torch.utils.data
from expected import Finding

EXPECT = Finding("missing", (2,), ("load",))


class Samples(torch.utils.data.Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if self.rank == 2 and index == 2:
            time.sleep(1000)
        return torch.ones(4)


def load(rank):
    for x in torch.utils.data.DataLoader(Samples(rank), num_workers=1):
        dist.all_reduce(x)


def job(rank):
    load(rank)
