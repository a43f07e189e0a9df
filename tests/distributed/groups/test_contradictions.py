"""Ranks that make different groups under one key, and two jobs that use one store, are told at once."""

import datetime
import re

import pytest
import torch
import torch.distributed as dist
from common import PATIENCE, bind, default_store, meet, total, total_of

from vccl import _C

# A group's timeout is half an hour in tests, so a test that passes has not waited for it.


def fails(call) -> str:
    """What the call raises, or what its group's first collective on a card raises."""
    with pytest.raises(dist.DistBackendError) as caught:
        group = call()
        # The part of the ranks that came first may have made its group before a contradiction was seen.
        dist.all_reduce(torch.ones(3), group=group)
        default_store().wait(["somebody failed"], PATIENCE)
        dist.all_reduce(torch.ones(3, device="vdev"), group=group)
    default_store().set("somebody failed", "")
    return str(caught.value)


def disjoint_groups(rank, size):
    return fails(lambda: dist.new_group([0, 1] if rank < 2 else [2, 3]))


def groups_of_different_sizes(rank, size):
    return fails(lambda: dist.new_group([0, 1, 2] if rank < 3 else [3, 4]))


@pytest.mark.parametrize(
    ("size", "make", "lists"),
    [
        (4, disjoint_groups, ("ranks 0, 1", "ranks 2, 3")),
        (5, groups_of_different_sizes, ("ranks 0, 1, 2", "ranks 3, 4")),
    ],
    ids=["disjoint", "sizes"],
)
def test_different_groups_under_one_name(rank_pool, size, make, lists):
    texts = rank_pool.run(size, make)
    for text in texts:
        assert all(f"called new_group for {each}" in text for each in lists), text
        assert "use_local_synchronization=True" in text


def groups_of_one_rank(rank, size):
    halves, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    # Each half makes its groups under the same two names.
    own, _ = dist.new_subgroups(group_size=1, group=halves)
    for device in ("cpu", "vdev"):
        assert total(own, device) == rank + 1
        assert total(halves, device) == total_of([rank, (rank + 2) % 4])


def test_groups_of_one_rank_may_share_a_name(rank_pool):
    rank_pool.run(4, groups_of_one_rank)


def awaited_by_a_group(rank, size):
    return fails(lambda: dist.new_group([0, 1] if rank == 0 else [1]))


def test_a_rank_that_is_alone_and_awaited(rank_pool):
    texts = rank_pool.run(2, awaited_by_a_group)
    assert any("called new_group for ranks 0, 1" in text for text in texts), texts
    assert all("called new_group for rank 1" in text for text in texts), texts


def crossed_order(rank, size):
    orders = {0: [[0, 1]], 1: [[1, 2], [0, 1]], 2: [[0, 1], [1, 2]]}
    # Rank 2 is in the second group, which rank 1 makes under the name of the first.
    return fails(lambda: [dist.new_group(ranks) for ranks in orders[rank]][-1])


def test_crossed_order(rank_pool):
    for text in rank_pool.run(3, crossed_order):
        assert "called new_group for ranks 0, 1, " in text and "called new_group for ranks 1, 2, " in text, (
            text
        )


def different_splits(rank, size, store):
    bind(rank, size, store)
    lists = [[0, 1], [2, 3]] if rank < 2 else [[0, 2], [1, 3]]
    with pytest.raises(dist.DistBackendError) as caught:
        # Who agrees with the ranks that it was split off with goes on, until the others are missing.
        half = dist.split_group(split_ranks=lists)
        default_store().wait(["somebody failed"], PATIENCE)
        dist.all_reduce(torch.ones(3), group=half)
        raise dist.DistBackendError("went on")
    default_store().set("somebody failed", "")
    return str(caught.value)


def test_different_lists_of_split_group(rank_pool):
    texts = rank_pool.run(4, different_splits, group=False)
    first = [text for text in texts if text != "went on"]
    # Those that came first may have made their half, which is whole. The halves of the others are refused.
    assert len(first) >= 2
    for text in first:
        assert "split_group([[0, 1], [2, 3]])" in text and "split_group([[0, 2], [1, 3]])" in text, text


def different_shrinks(rank, size, store):
    bind(rank, size, store)
    meet(rank, size, store)
    if rank == 3:
        store.wait(["over"], PATIENCE)
        return ""
    with pytest.raises(dist.DistBackendError) as caught:
        dist.shrink_group([3] if rank != 2 else [1, 3])
    store.set(f"failed {rank}", "")
    store.wait([f"failed {other}" for other in range(3)], PATIENCE)
    store.set("over", "")
    return str(caught.value)


def test_different_lists_of_shrink_group(rank_pool):
    for text in rank_pool.run(4, different_shrinks, group=False)[:3]:
        assert "shrink_group([3])" in text and "shrink_group([1, 3])" in text.replace("1,3", "1, 3"), text


def different_worlds(rank, size, store):
    with pytest.raises(dist.DistBackendError) as caught:
        bind(rank, size + (rank == 1), store)
    assert not dist.is_initialized()
    return str(caught.value)


def test_different_sizes_of_the_world(rank_pool):
    for text in rank_pool.run(2, different_worlds, group=False):
        assert "for 2 ranks" in text and "for 3 ranks" in text, text


def second_job(rank, size, store):
    """Ranks 2 and 3 are a second job, whose ranks 0 and 1 come to the store of the first."""
    if rank < 2:
        bind(rank, 2, store)
        assert total(None, "vdev") == total_of([0, 1])
        store.set(f"made {rank}", "")
        store.wait(["refused 2", "refused 3"], PATIENCE)
        assert total(None, "vdev") == total_of([0, 1])
        return ""
    store.wait(["made 0", "made 1"], PATIENCE)
    with pytest.raises(dist.DistBackendError) as caught:
        bind(rank - 2, 2, store)
    store.set(f"refused {rank}", "")
    return str(caught.value)


def test_second_job_with_the_same_store(rank_pool):
    for text in rank_pool.run(4, second_job, group=False)[2:]:
        assert re.search(r"rank [01] of group .* is process \d+ on host .* and also process \d+", text), text
        assert "two jobs use the same store" in text


@pytest.mark.ranks(4)
def test_legal_groups_stay_legal(ranks):
    """All ranks make all groups; members alone make theirs; and the same names again after an end."""
    rank = ranks.rank
    for members in ([0, 1], [2, 3], [1, 2], [0, 1]):
        group = dist.new_group(members)
        if rank in members:
            assert total(group, "vdev") == total(group, "cpu") == total_of(members)
    mine = [0, 1] if rank < 2 else [2, 3]
    local = dist.new_group(mine, use_local_synchronization=True)
    assert total(local, "vdev") == total_of(mine)


@pytest.mark.ranks(2, group=False)
def test_the_same_names_in_one_store_again(ranks):
    for _ in range(3):
        bind(ranks.rank, ranks.size, ranks.store)
        assert total(dist.new_group([0, 1]), "vdev") == 3
        dist.destroy_process_group()
    later = dist.PrefixStore("attempt 1", ranks.store)
    bind(ranks.rank, ranks.size, later)
    assert total(dist.new_group([0, 1]), "vdev") == 3


@pytest.mark.ranks(2)
def test_a_store_in_python_without_compare_set(ranks):

    class Plain(dist.Store):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def set(self, key, value):
            self.inner.set(key, value)

        def get(self, key):
            return self.inner.get(key)

        def add(self, key, value):
            return self.inner.add(key, value)

        def check(self, keys):
            return self.inner.check(keys)

        def delete_key(self, key):
            return self.inner.delete_key(key)

    options = _C.ProcessGroupVccl.Options()
    options._timeout = datetime.timedelta(seconds=600)
    group = _C.ProcessGroupVccl(Plain(dist.PrefixStore("plain", default_store())), ranks.rank, 2, options)
    x = torch.full((3,), ranks.rank + 1.0)
    group.allreduce([x]).wait()
    assert x.tolist() == [3.0] * 3
    group.shutdown()
