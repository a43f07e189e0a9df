"""Kernels of vdev::launch_kernel() that read what a failed collective should have written."""

import ctypes

import pytest
import torch
import torch.distributed as dist
from disagreements import Held, disagree, raises

from vccl import _C


def on_host(x: torch.Tensor) -> torch.Tensor:
    return torch.frombuffer((ctypes.c_char * x.nbytes).from_address(x.data_ptr()), dtype=x.dtype)


def double(source: torch.Tensor, target: torch.Tensor) -> None:
    read, written = on_host(source), on_host(target)
    _C.launch_kernel("tests::double", [source], [target], lambda: torch.mul(read, 2, out=written))


@pytest.mark.ranks(2)
def test_a_kernel_that_is_called_after_the_failure(ranks):
    y, z = torch.ones(4, device="vdev"), torch.zeros(4, device="vdev")
    _, group = disagree(ranks.rank, y)
    raises(lambda: y[0].item())
    raises(lambda: double(y, z))
    assert z.tolist() == [0] * 4
    # What a kernel writes as a whole is read again, also in the place of what was spoiled.
    double(z, y)
    assert y.tolist() == [0] * 4
    dist.destroy_process_group(group)


@pytest.mark.asynchronous
@pytest.mark.ranks(2)
def test_a_kernel_that_was_queued_before_the_failure(ranks):
    y, z, w = (torch.ones(4, device="vdev") for _ in range(3))
    group = dist.new_group()
    x = torch.ones(3 + ranks.rank, device="vdev")
    torch.vdev.synchronize()
    with Held():
        dist.all_reduce(x, group=group)
        dist.all_reduce(y, group=group)
        double(y, z)  # z inherits the failure
        double(z, w)  # and so does w
    raises(lambda: w[0].item())
    raises(lambda: z[0].item())
    dist.destroy_process_group(group)
    assert z.tolist() == w.tolist() == [1] * 4  # neither has run


@pytest.mark.ranks(2)
def test_a_replay_after_the_failure(ranks):
    y, z = torch.ones(4, device="vdev"), torch.zeros(4, device="vdev")
    graph = torch.vdev.VDEVGraph()
    torch.vdev.synchronize()
    with torch.vdev.graph(graph):
        double(y, z)
    graph.replay()
    assert z.tolist() == [2] * 4
    _, group = disagree(ranks.rank, y)
    raises(lambda: y[0].item())
    z.fill_(5)
    graph.replay()
    raises(lambda: z[0].item())
    y.fill_(4)
    graph.replay()
    assert z.tolist() == [8] * 4
    dist.destroy_process_group(group)
