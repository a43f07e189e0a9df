"""Messages on cards with one peer that use the same memory are in order, as with NCCL."""

import time

import pytest
import torch
import torch.distributed as dist

COUNTS = [1, 1000, 1_000_000]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("count", COUNTS)
def test_a_receive_comes_after_the_send_of_the_same_tensor(ranks, count):
    store, card = ranks.store, torch.device("vdev", ranks.rank)
    x = torch.full((count,), 1.0 + ranks.rank, device=card)
    works = [dist.isend(x, 1 - ranks.rank)]
    if ranks.rank == 0:
        works.append(dist.irecv(x, 1))
        store.set("both have begun", "")
    else:
        y = torch.zeros(count, device=card)
        store.wait(["both have begun"])
        time.sleep(0.05)  # in which the receive of rank 0 could overtake
        works.append(dist.irecv(y, 0))
    for work in works:
        work.wait()
    assert (x if ranks.rank == 0 else y).eq(2.0 if ranks.rank == 0 else 1.0).all()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("count", COUNTS)
def test_a_send_comes_after_the_receive_of_the_same_tensor(ranks, count):
    store, card = ranks.store, torch.device("vdev", ranks.rank)
    x = torch.full((count,), float(ranks.rank), device=card)
    if ranks.rank == 0:
        works = [dist.irecv(x, 1), dist.isend(x, 1)]
        store.set("both have begun", "")
    else:
        y = torch.zeros(count, device=card)
        store.wait(["both have begun"])
        works = [dist.isend(x, 0), dist.irecv(y, 0)]
    for work in works:
        work.wait()
    assert (x if ranks.rank == 0 else y).eq(1.0).all()
