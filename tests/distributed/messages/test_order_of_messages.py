"""What orders messages on cards, as with NCCL: other messages with the peer, and synchronising the card."""

import time
from datetime import timedelta

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


@pytest.mark.ranks(2)
@pytest.mark.parametrize("count", COUNTS)
def test_a_synchronization_waits_for_messages(ranks, count):
    card = torch.device("vdev", ranks.rank)
    if ranks.rank == 0:
        x = torch.zeros(count, device=card)
        torch.vdev.synchronize(card)
        work = dist.irecv(x, 1)
        ranks.store.set("begun", "")
        torch.vdev.synchronize(card)
        assert x.eq(5).all() and work.is_completed()
    else:
        ranks.store.wait(["begun"])
        time.sleep(0.05)  # in which a synchronisation that does not wait ends
        dist.send(torch.full((count,), 5.0, device=card), 0)


@pytest.mark.ranks(2)
def test_a_synchronization_raises_what_a_message_met(ranks):
    """Nobody has waited for the handle, so no stream knows of the failure."""
    card = torch.device("vdev", ranks.rank)
    group = dist.new_group(timeout=timedelta(milliseconds=300), backend="vccl")
    dist.barrier(group)
    if ranks.rank == 0:
        x = torch.zeros(3, device=card)
        dist.irecv(x, 1, group=group)  # nobody sends it
        for _ in range(2):  # it is raised for as long as nobody has dealt with it
            with pytest.raises(RuntimeError, match=r"rank 1 .*send message"):
                torch.vdev.synchronize(card)
        group.abort()
        torch.vdev.synchronize(card)
        ranks.store.set("aborted", "")
    ranks.store.wait(["aborted"])


@pytest.mark.ranks(2)
def test_a_group_that_is_destroyed_with_a_message_under_way(ranks):
    """A synchronisation waits for nothing then, and whoever reads what was not received learns of it."""
    card = torch.device("vdev", ranks.rank)
    group = dist.new_group(timeout=timedelta(milliseconds=300), backend="vccl")
    dist.barrier(group)
    if ranks.rank == 0:
        x = torch.zeros(3, device=card)
        dist.irecv(x, 1, group=group)
        dist.destroy_process_group(group)
        torch.vdev.synchronize(card)
        with pytest.raises(RuntimeError, match="destroyed while a message was under way"):
            x.sum().item()
        ranks.store.set("destroyed", "")
    ranks.store.wait(["destroyed"])


@pytest.mark.ranks(2)
@pytest.mark.parametrize("count", COUNTS)
def test_messages_that_use_parts_of_a_tensor(ranks, count):
    """A receive of the whole comes after messages with its parts, and those that follow after the receive."""
    card = torch.device("vdev", ranks.rank)
    x = torch.full((2 * count,), float(ranks.rank), device=card)
    halves = x.view(2, count)
    for number in range(20):
        if ranks.rank == 0:
            halves[0].fill_(number)
            dist.isend(halves[0], 1)
            dist.isend(halves[1], 1)
            dist.irecv(x, 1)
            dist.isend(halves[1], 1)
            dist.irecv(halves[1], 1).wait()
        else:
            dist.irecv(halves[0], 0).wait()
            dist.irecv(halves[1], 0).wait()
            (work := dist.isend(x + number, 0)).wait()
            got = torch.empty(count, device=card)
            dist.irecv(got, 0).wait()
            assert got.equal(halves[1] + number), number
            dist.isend(got + 1, 0).wait()
            del work
        torch.vdev.synchronize(card)
        if ranks.rank == 0:
            assert halves[0].eq(2 * number).all(), number
