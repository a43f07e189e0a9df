"""A barrier over the group's store that names who did not come."""

import datetime
import os
import warnings

import pytest
import torch
import torch.distributed as dist
from common import PATIENCE, default_store, hear, tell

import vccl

SHORT = datetime.timedelta(seconds=0.5)
# Longer than any test may take: a call with it has to end for another reason.
FOREVER = datetime.timedelta(hours=1)


def failure(*args, **kwargs) -> str:
    with pytest.raises(dist.DistBackendError) as caught:
        vccl.monitored_barrier(*args, **kwargs)
    return str(caught.value)


@pytest.mark.ranks(1, 2, 3, 5)
def test_waits_for_all(ranks):
    for turn in range(5):
        tell(f"{turn}: {ranks.rank} is there")
        vccl.monitored_barrier(timeout=FOREVER, wait_all_ranks=turn % 2 == 0)
        assert default_store().check([f"{turn}: {other} is there" for other in range(ranks.size)])


@pytest.mark.ranks(2)
def test_leaves_no_key():
    vccl.monitored_barrier(timeout=FOREVER)
    group_store = dist.group.WORLD.get_group_store()
    keys = [f"vccl/monitored_barrier/1/1/{key}" for key in ("rank/0", "rank/1", "verdict", "left")]
    while any(group_store.check([key]) for key in keys):
        pass  # a rank may still be on its way out


def entries():
    """Every way to call it, with and without a group."""
    group = dist.group.WORLD
    vccl.monitored_barrier()
    dist.monitored_barrier()
    dist.distributed_c10d.monitored_barrier(group, FOREVER, wait_all_ranks=True)
    dist.monitored_barrier(group=group, timeout=FOREVER)
    group.monitored_barrier(FOREVER)
    group.monitored_barrier(timeout=FOREVER, wait_all_ranks=True)
    with pytest.warns(UserWarning, match="timedelta"):
        dist.monitored_barrier(timeout=30.0)


@pytest.mark.ranks(2)
def test_is_what_torch_calls():
    entries()


@pytest.mark.ranks(2, group=False)
def test_is_what_torch_calls_without_cpu_tensors(ranks):
    dist.init_process_group("vdev:vccl", store=ranks.store, rank=ranks.rank, world_size=ranks.size)
    entries()


@pytest.mark.ranks(2, group=False)
def test_is_what_torch_calls_at_the_debug_level_detail(ranks):
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        dist.init_process_group("vccl", store=ranks.store, rank=ranks.rank, world_size=ranks.size)
        entries()
    finally:
        dist.set_debug_level(before)


def has_come(rank: int) -> None:
    """Waits until a rank has come to the first barrier of the default group."""
    dist.group.WORLD.get_group_store().wait([f"vccl/monitored_barrier/1/1/rank/{rank}"], PATIENCE)


def have_failed(ranks: int) -> None:
    """Waits until this number of ranks have failed, and tells the rank that has not been there."""
    default_store().add("failed", 1)
    while int(default_store().add("failed", 0)) < ranks:
        pass
    tell("all others have failed")


def one_missing(rank, size):
    if rank == 1:
        hear("all others have failed")
        # The others went on without this rank: it learns that at once, however long it would wait.
        text = failure(timeout=FOREVER)
    else:
        text = failure(timeout=SHORT)
        have_failed(size - 1)
    # Nothing is broken, and nobody is out of step.
    vccl.monitored_barrier(timeout=FOREVER)
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x.tolist() == [size] * 3
    return text


def test_names_the_missing_rank(rank_pool):
    texts = rank_pool.run(3, one_missing)
    assert len(set(texts)) == 1
    assert texts[0].startswith(
        "Rank 1 failed to pass monitoredBarrier in 500 ms (group default_pg of 3 ranks, according to rank 0)"
    )


def without_first(rank, size):
    if rank == 0:
        hear("all others have failed")
        text = failure(timeout=FOREVER)
    else:
        text = failure(timeout=SHORT)
        have_failed(size - 1)
    vccl.monitored_barrier(timeout=FOREVER)
    return text


def test_names_rank_0(rank_pool):
    texts = rank_pool.run(3, without_first)
    assert len(set(texts)) == 1
    assert texts[0].startswith("Rank 0 failed to pass monitoredBarrier in 500 ms")


def several_missing(rank, size, wait_all_ranks):
    text = None
    if rank in (0, 2):
        if rank == 0:
            has_come(2)  # else a slow machine might let rank 0 miss it, too
        text = failure(timeout=SHORT if rank == 0 else FOREVER, wait_all_ranks=wait_all_ranks)
        tell(f"{rank} has failed")
    hear("0 has failed")
    hear("2 has failed")
    return text


@pytest.mark.parametrize(
    ("wait_all_ranks", "named"), [(False, "Rank 1 failed to"), (True, "Ranks 1, 3, 4 failed to")]
)
def test_names_the_first_or_all(rank_pool, wait_all_ranks, named):
    first, _, third, _, _ = rank_pool.run(5, several_missing, wait_all_ranks)
    assert first == third
    assert first.startswith(named)


@pytest.mark.ranks(4)
def test_of_subgroups(ranks):
    rank = ranks.rank
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine, other = pairs[rank % 2], pairs[1 - rank % 2]
    with pytest.warns(UserWarning, match="does not belong"):
        dist.monitored_barrier(other, timeout=FOREVER)
    dist.monitored_barrier(mine, timeout=FOREVER)
    if rank == 1:  # one group's failure is not the other's; the missing rank has both numbers
        text = failure(mine, timeout=SHORT)
        assert text.startswith("Rank 3 (1 of group 2) failed to pass monitoredBarrier")
        assert "of 2 ranks" in text
        tell("1 has failed")
    elif rank != 3:
        dist.monitored_barrier(mine, timeout=FOREVER)
    hear("1 has failed")
    dist.monitored_barrier(timeout=FOREVER)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("device", ["vdev", "cpu"])
def test_needs_no_communicator(ranks, device):
    """The others are in a collective that rank 0 has not reached: the barrier goes past it."""
    x = torch.ones(5, device=device)
    dist.all_reduce(x.clone())  # the first makes the communicator, in which all ranks have to take part
    work = dist.all_reduce(x, async_op=True) if ranks.rank else None
    vccl.monitored_barrier(timeout=FOREVER)
    if ranks.rank == 0:
        work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert x.tolist() == [ranks.size] * 5


def after_death(rank, size):
    """Rank 1 is gone and the group has failed; who is there can still be found out."""
    dist.all_reduce(torch.ones(4))
    if rank == 1:
        os._exit(1)
    with pytest.raises(dist.DistBackendError):
        dist.all_reduce(torch.ones(4))
    if rank == 0:
        has_come(2)
    return failure(timeout=SHORT if rank == 0 else FOREVER, wait_all_ranks=True)


def test_tells_who_is_gone_from_a_failed_group(rank_pool):
    first, _, third = rank_pool.run(3, after_death, dying=[1])
    assert first == third
    assert first.startswith("Rank 1 failed to pass monitoredBarrier")


@pytest.mark.ranks(2, group=False)
def test_of_a_group_made_again(ranks):
    for life in range(2):
        dist.init_process_group("vccl", store=ranks.store, rank=ranks.rank, world_size=ranks.size)
        if life == 0 and ranks.rank == 0:
            assert failure(timeout=SHORT).startswith("Rank 1")
            ranks.store.set("rank 0 has failed", "")
        if life == 0:
            ranks.store.wait(["rank 0 has failed"], PATIENCE)
        else:
            # The verdict of the first life is still in the store, since rank 1 never asked for it.
            vccl.monitored_barrier(timeout=FOREVER)
        dist.destroy_process_group()


@pytest.mark.ranks(3, group=False)
def test_of_split_groups(ranks):
    rank, size = ranks.rank, ranks.size
    dist.init_process_group(
        "vccl", store=ranks.store, rank=rank, world_size=size, device_id=torch.device("vdev", rank)
    )
    group = dist.split_group(split_ranks=[[0, 1], [2]])
    vccl.monitored_barrier(group, timeout=FOREVER)
    vccl.monitored_barrier(timeout=FOREVER)


@pytest.mark.ranks(2)
def test_refuses_what_it_cannot_serve():
    gloo = dist.new_group(backend="gloo")
    dist.monitored_barrier(gloo, timeout=FOREVER)  # gloo's own
    with pytest.raises(ValueError, match="no backend vccl"):
        vccl.monitored_barrier(gloo)
    with pytest.raises(TypeError, match="timedelta"):
        vccl.monitored_barrier(timeout="1s")
    group = dist.new_group()
    dist.destroy_process_group(group)
    with pytest.raises(ValueError, match="has destroyed it"):
        vccl.monitored_barrier(group)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vccl.monitored_barrier()  # none of these counted


@pytest.mark.ranks(2, group=False)
def test_takes_the_timeout_of_the_group(ranks):
    rank, size = ranks.rank, ranks.size
    dist.init_process_group("vccl", store=ranks.store, rank=rank, world_size=size)
    # Only now: to meet for the group, the ranks may take longer.
    dist.group.WORLD.set_timeout(datetime.timedelta(milliseconds=700))
    if rank == 0:
        assert "in 700 ms" in failure()
        ranks.store.set("rank 0 has failed", "")
    ranks.store.wait(["rank 0 has failed"], PATIENCE)
