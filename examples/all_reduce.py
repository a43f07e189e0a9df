"""Adds the numbers of all ranks. This is the smallest program with a collective.

vrun --cards 2 examples/all_reduce.py
"""

import os

import torch
import torch.distributed as dist

card = int(os.environ["LOCAL_RANK"])
torch.accelerator.set_device_index(card)

dist.init_process_group("vccl")
x = torch.full((4,), float(dist.get_rank() + 1), device="vdev")
dist.all_reduce(x)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {x}")
dist.destroy_process_group()
