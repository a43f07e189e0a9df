"""Rank 2 does not call split_group, and the others use the new group."""

import time

import torch
import torch.distributed as dist
from expected import Finding

INIT = False
EXPECT = Finding("missing", (2,), ("plan",))


def plan():
    time.sleep(1000)


def job(rank):
    card = torch.device("vdev", rank)
    torch.accelerator.set_device_index(rank)
    dist.init_process_group("vccl", device_id=card)  # split_group refuses a group without a card of its own
    dist.all_reduce(torch.ones(4, device=card))
    torch.accelerator.synchronize()
    if rank == 2:
        plan()
    group = dist.split_group(split_ranks=[[0, 1, 2]])
    dist.all_reduce(torch.ones(4, device=card), group=group)
    torch.accelerator.synchronize()
