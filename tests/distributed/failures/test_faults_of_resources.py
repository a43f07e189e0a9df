"""A plan takes the system's resources away from vccl's own calls, for one call, and what failed can be tried
again.
"""

import os

import pytest
import torch
import torch.distributed as dist

from vccl import faults


def new_group_fails_once(rank, size, kind):
    """A group that one rank cannot make fails on all, and the next one can be made."""
    with faults.plan(f"rank=1,phase=new_group,n=1,do={kind}"):
        with pytest.raises((dist.DistBackendError, RuntimeError)) as caught:
            dist.new_group()
        group = dist.new_group()
    x = torch.ones(100_000)
    dist.all_reduce(x, group=group)
    assert (x == size).all().item()
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x.tolist() == [size] * 3
    return str(caught.value)


@pytest.mark.parametrize(
    "kind, reason", [("full-disk", "No space left on device"), ("no-descriptors", "Too many open files")]
)
@pytest.mark.parametrize("hosts", [(), ("a", "b")], ids=["one_host", "two_hosts"])
def test_a_group_that_cannot_be_made_fails_on_all_ranks(rank_pool, kind, reason, hosts):
    texts = rank_pool.run(2, new_group_fails_once, kind, hosts=hosts, timeout=120)
    assert reason in texts[1], texts
    assert "rank 1" in texts[0], texts


def program_files(rank, size, kind, folder):
    """What the program opens and writes itself is left alone."""
    with faults.plan(f"op=all_reduce,n=1,do={kind}"):
        dist.all_reduce(torch.ones(3))
        path = os.path.join(folder, f"{kind}-{rank}")
        with open(path, "w") as file:
            file.write("text")
        reader, writer = os.pipe()
        os.close(reader)
        os.close(writer)
    with open(path) as file:
        assert file.read() == "text"
    return [each.kind for each in faults.struck()]


@pytest.mark.parametrize("kind", ["full-disk", "no-descriptors"])
def test_files_of_the_program_are_left_alone(rank_pool, kind, tmp_path):
    for struck in rank_pool.run(2, program_files, kind, str(tmp_path)):
        assert struck[-1] == kind


def after_an_unmet_fault(rank, size):
    """A lack that no call has met ends with its plan."""
    with faults.plan("op=all_reduce,n=1,do=no-descriptors; op=all_reduce,n=1,do=full-disk"):
        dist.all_reduce(torch.ones(3))
    group = dist.new_group()
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    return x.tolist()


def test_a_lack_ends_with_its_plan(rank_pool):
    assert rank_pool.run(2, after_an_unmet_fault) == [[2.0] * 3] * 2
