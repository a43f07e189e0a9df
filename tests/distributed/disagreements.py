"""Collectives that fail because the ranks disagree, and how a test reads what they should have written."""

import threading

import pytest
import torch
import torch.distributed as dist

MISMATCH = "all_reduce.*3 elements"


def raises(call, match=MISMATCH):
    """`call` raises, however often it is called."""
    for _ in range(3):
        with pytest.raises(dist.DistBackendError, match=match):
            call()


class Held:
    """Keeps the current stream from running anything that is called inside the block."""

    def __enter__(self):
        self.gate = threading.Event()
        torch.vdev._launch_host_func(lambda: self.gate.wait(60))

    def __exit__(self, *_):
        self.gate.set()


def disagree(rank, *following, group=None):
    """A tensor whose all_reduce will fail, and all_reduces of `following` that are called before it has."""
    group = group or dist.new_group()
    x = torch.ones(3 + rank, device="vdev")
    with Held():
        dist.all_reduce(x, group=group)
        for tensor in following:
            dist.all_reduce(tensor, group=group)
    return x, group
