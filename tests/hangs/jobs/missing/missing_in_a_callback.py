"""A callback of a future blocks the only thread that runs them, and rank 2 waits for the future."""

import time

import torch
import torch.distributed as dist
from expected import Finding

EXPECT = Finding("missing", (2,), ("wait_for_result",))


def wait_for_result(future):
    future.wait()


def job(rank):
    x = torch.ones(4)
    future = dist.all_reduce(x, async_op=True).get_future().then(lambda done: time.sleep(1000))
    if rank == 2:
        wait_for_result(future)
    dist.all_reduce(x)
