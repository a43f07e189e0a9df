"""Three hosts wait long for each other in turn, in collectives and for messages, and nobody is blamed."""

import time

import torch
import torch.distributed as dist
from expected import Errors

HOSTS = [0, 1, 2]
EXPECT = Errors((0, 1, 2), ("went through",))


def job(rank):
    x = torch.ones(4)
    groups = [dist.new_group([0, 1, 2]) for _ in range(2)]
    for slow in range(3):
        if rank == slow:
            time.sleep(2.5)
        if rank == 2:
            # What was sent before stays unread for as long as the others wait for this rank.
            dist.send(x, 0)
        dist.broadcast(x, slow, group=groups[slow % 2])
        if rank == 0:
            dist.recv(x, 2)
        dist.all_reduce(x, group=groups[1 - slow % 2])
    print("went through")
