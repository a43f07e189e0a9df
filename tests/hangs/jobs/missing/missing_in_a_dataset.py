"""The dataset of rank 2 does not give its next sample."""

import time

import torch
import torch.distributed as dist
import torch.utils.data
from expected import Finding

EXPECT = Finding("missing", (2,), ("__getitem__",))


class Samples(torch.utils.data.Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if self.rank == 2 and index == 2:
            time.sleep(1000)
        return torch.ones(4)


def job(rank):
    for x in torch.utils.data.DataLoader(Samples(rank)):
        dist.all_reduce(x)
