"""Rank 2 does not come to init_process_group, so only its process is known."""

import time

import torch.distributed as dist
from expected import Finding

INIT = False
EXPECT = Finding("missing", (2,), ("init_process_group", "has made no group yet"))


def job(rank):
    if rank == 2:
        time.sleep(1000)
    dist.init_process_group("vccl")
