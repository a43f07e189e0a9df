"""split_group, merging and shrink_group: groups that share nothing with those they come from."""

import datetime
import os
import signal

import pytest
import torch
import torch.distributed as dist
from common import PATIENCE, backend_of, bind, default_store, everywhere, meet, total, total_of
from torch._C._distributed_c10d import ErrorType
from torch.distributed import distributed_c10d as c10d

import vccl
from vccl._device_type import backend_name
from vccl.testing import GROUP_TIMEOUT

# Of four ranks: which share a host.
HOSTS = [(), ("here", "here", "there", "there")]
on_hosts = pytest.mark.parametrize("hosts", HOSTS, ids=["one_host", "two_hosts"])


# --- split_group


def split_halves(rank, size, store):
    options = vccl.Options(is_high_priority_stream=True)
    bind(rank, size, store, pg_options=options)
    world = backend_of(None)
    assert world.comm_split_count() == 0
    halves = [[0, 2], [1, 3]]
    mine = halves[rank % 2]
    half = dist.split_group(split_ranks=halves, timeout=datetime.timedelta(seconds=1700))
    assert world.comm_split_count() == 1
    assert half.size() == 2 and half.rank() == rank // 2
    assert dist.get_process_group_ranks(half) == mine
    assert half.group_desc == "default_pg:split:0"
    child = backend_of(half)
    assert child.name() == backend_name() and child.options.global_ranks_in_group == mine
    assert child.options._timeout == datetime.timedelta(seconds=1700)
    assert child.options.is_high_priority_stream
    assert child.options.group_name == half.group_name
    # The parent keeps its own.
    assert world.options._timeout == datetime.timedelta(seconds=GROUP_TIMEOUT)
    assert world.options.group_name != half.group_name
    for device in ("vdev", "cpu"):
        assert total(half, device) == total_of(mine)
        assert total(None, device) == total_of(range(size))
    # The same ranks again: another group, used before and after the first in another order on each rank.
    again = dist.split_group(split_ranks=halves)
    assert again is not half and again.group_name != half.group_name
    assert again.group_desc == "default_pg:split:1"
    total(again, "vdev")
    xs = [torch.full((50,), float(rank), device="vdev") for _ in range(2)]
    groups = [half, again] if rank // 2 else [again, half]
    works = [
        dist.all_reduce(xs[group is half], dist.ReduceOp.MAX, group=group, async_op=True) for group in groups
    ]
    for work in works:
        work.wait()
    assert all((x == max(mine)).all().item() for x in xs)
    # A split of a split, in which two ranks are alone.
    single = dist.split_group(parent_pg=half, split_ranks=[[0], [1]])
    assert single.size() == 1 and total(single, "vdev") == rank + 1
    assert backend_of(single).options.global_ranks_in_group == [rank]


@on_hosts
def test_split(rank_pool, hosts):
    rank_pool.run(4, split_halves, group=False, hosts=hosts)


@pytest.mark.ranks(3, group=False)
def test_split_leaves_ranks_out(ranks):
    bind(ranks.rank, ranks.size, ranks.store)
    some = dist.split_group(split_ranks=[[0, 1]], group_desc="a pair")
    if ranks.rank == 2:
        assert some in (None, dist.GroupMember.NON_GROUP_MEMBER)  # the latter since torch 2.14
    else:
        assert some.group_desc == "a pair" and total(some, "vdev") == 3
    dist.barrier()
    assert total(None, "vdev") == 6


@pytest.mark.ranks(3, group=False)
def test_split_needs_only_its_members(ranks):
    """Below split_group, only those call who will be members; rank 1 makes more children than the others."""
    rank, size = ranks.rank, ranks.size
    bind(rank, size, ranks.store)
    for members in ([0, 1], [1, 2], [0, 1]):
        if rank in members:
            child = dist.group.WORLD.split_group(members)
            assert child.rank() == members.index(rank)
            x = torch.full((3,), rank + 1.0, device="vdev")
            child.allreduce([x]).wait()
            assert (x == total_of(members)).all().item(), members
            child.shutdown()


@pytest.mark.ranks(2, group=False)
def test_split_of_ranks_that_are_not_there(ranks):
    bind(ranks.rank, ranks.size, ranks.store)
    backend = backend_of(None)
    for members, message in (([], "Split ranks cannot be empty"), ([0, 0], "duplicates")):
        with pytest.raises(RuntimeError, match=message):
            dist.group.WORLD.split_group(members)
    with pytest.raises(ValueError, match=r"the ranks \[0,7\] are not all in a group of 2 ranks"):
        dist.group.WORLD.split_group([0, 7])
    assert total(None, "vdev") == 3
    assert backend.get_error() == ErrorType.SUCCESS


@pytest.mark.ranks(3, group=False)
def test_split_again_after_destroy(ranks):
    """One store for all, as under torchrun."""
    for _ in range(3):
        bind(ranks.rank, ranks.size, ranks.store)
        for _ in range(2):
            half = dist.split_group(split_ranks=[[0, 1], [2]])
            assert total(half, "vdev") == 3
        dist.destroy_process_group()


@pytest.mark.ranks(2, group=False)
def test_child_outlives_its_parent(ranks):
    bind(ranks.rank, ranks.size, ranks.store)
    parent = dist.split_group(split_ranks=[[0, 1]])
    child = dist.split_group(parent_pg=parent, split_ranks=[[0, 1]])
    total(parent, "vdev")
    dist.destroy_process_group(parent)
    assert total(child, "vdev") == 3
    meet(ranks.rank, ranks.size, ranks.store)  # an abort reaches ranks that are still in the last collective
    backend_of(child).abort()
    assert total(None, "vdev") == 3


# --- merging


def merged(rank, size, device):
    """Two groups of two become one of four."""
    left, right = dist.new_group([0, 1]), dist.new_group([2, 3])
    mine = left if rank < 2 else right
    total(mine, device)
    store = dist.PrefixStore("meeting", default_store())
    timeout = datetime.timedelta(seconds=2000)
    before = backend_of(mine, device).options._timeout
    whole = mine.merge_remote_group(store, size, timeout, "everybody")
    assert whole.size() == size and whole.group_name == "everybody"
    backend = backend_of(whole, device)
    assert backend.options._timeout == timeout
    assert backend_of(mine, device).options._timeout == before != timeout
    x = torch.full((10,), rank + 1.0, device=device)
    whole.allreduce([x]).wait()
    assert (x == 10).all().item()
    # Ranks are numbered as they came: all there, each once.
    numbers = [torch.empty(1, dtype=torch.int64, device=device) for _ in range(size)]
    whole.allgather([numbers], [torch.full((1,), whole.rank(), dtype=torch.int64, device=device)]).wait()
    assert [number.item() for number in numbers] == list(range(size))
    assert total(mine, device) == total_of([0, 1] if rank < 2 else [2, 3])
    whole.shutdown()


@on_hosts
@everywhere
def test_merge(rank_pool, device, hosts):
    rank_pool.run(4, merged, device, hosts=hosts)


@pytest.mark.ranks(2)
def test_merge_of_more_ranks_than_said(ranks):
    store = dist.PrefixStore("meeting", default_store())
    dist.barrier()
    if ranks.rank == 0:
        dist.group.WORLD.merge_remote_group(store, 1)
        with pytest.raises(ValueError, match="merge_remote_group: this rank is number 1 "):
            dist.group.WORLD.merge_remote_group(store, 1)
    dist.barrier()


# --- shrinking


def shrunk(rank, size, store, flags):
    bind(rank, size, store)
    assert total(None, "vdev") == total_of(range(size))
    meet(rank, size, store)  # nobody aborts what another is still in
    if rank == 1:
        store.wait(["shrunk"], PATIENCE)
        if flags == c10d.SHRINK_ABORT:
            with pytest.raises(dist.DistBackendError, match="aborted the group"):
                dist.all_reduce(torch.ones(3, device="vdev"))
        return
    small = dist.shrink_group([1], shrink_flags=flags)
    assert dist.group.WORLD is small and dist.get_world_size() == size - 1
    assert dist.get_rank() == small.rank() == (0 if rank == 0 else rank - 1)
    child = backend_of(small)
    assert child.options.global_ranks_in_group == [0, 2, 3]
    x = torch.full((10,), rank + 1.0, device="vdev")
    dist.all_reduce(x)
    assert (x == total_of([0, 2, 3])).all().item()
    # What was shrunk can be shrunk.
    if small.rank() < 2:
        pair = dist.shrink_group([2])
        x.fill_(rank + 1.0)
        dist.all_reduce(x, group=pair)
        assert (x == total_of([0, 2])).all().item()
    if rank == 0:
        store.set("shrunk", "")


@pytest.mark.parametrize("flags", [c10d.SHRINK_DEFAULT, c10d.SHRINK_ABORT], ids=["default", "abort"])
@on_hosts
def test_shrink(rank_pool, flags, hosts):
    rank_pool.run(4, shrunk, flags, group=False, hosts=hosts)


def shrunk_after_death(rank, size, store):
    bind(rank, size, store)
    x = torch.ones(10, device="vdev")
    dist.all_reduce(x)
    torch.accelerator.synchronize()
    meet(rank, size, store)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError, match="rank 2"):
        dist.all_reduce(x)
        torch.accelerator.synchronize()
    assert backend_of(None).get_error() == ErrorType.REMOTE_ERROR
    small = dist.shrink_group([2], shrink_flags=c10d.SHRINK_ABORT)
    for step in range(5):
        y = torch.full((1000,), float(rank + step), device="vdev")
        dist.all_reduce(y, dist.ReduceOp.MAX)
        assert (y == 3 + step).all().item()
    assert backend_of(small).get_error() == ErrorType.SUCCESS
    assert dist.get_world_size() == 3


@on_hosts
def test_shrink_after_a_rank_died(rank_pool, hosts):
    rank_pool.run(4, shrunk_after_death, group=False, dying=[2], hosts=hosts)


@pytest.mark.ranks(3)
def test_shrink_of_the_backend(ranks):
    """The backend alone, with no device bound."""
    rank = ranks.rank
    backend = backend_of(None, "cpu")
    if rank == 0:
        with pytest.raises(ValueError, match=r"rank 0 is one of the excluded ranks \[0,1\]"):
            backend.shrink([0, 1])
        with pytest.raises(ValueError, match=r"the ranks \[5\] are not all in a group of 3"):
            backend.shrink([5])
        with pytest.raises(ValueError, match="no rank would remain"):
            backend.shrink([0, 1, 2])
        with pytest.raises(ValueError, match="the flags 8"):
            backend.shrink([1], 8)
    if rank == 1:
        return
    options = vccl.Options()
    options._timeout = datetime.timedelta(seconds=1900)
    small = backend.shrink([1], 0, options)
    assert (small.rank(), small.size()) == (0 if rank == 0 else 1, 2)
    assert small.options._timeout == datetime.timedelta(seconds=1900)
    for device in ("cpu", "vdev"):
        x = torch.full((5,), rank + 1.0, device=device)
        small.allreduce([x]).wait()
        assert (x == 4).all().item()
    small.shutdown()
