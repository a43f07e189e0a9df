"""What goes wrong with messages: told on every rank that is concerned, in bounded time."""

import datetime
import os
import signal

import pytest
import torch
import torch.distributed as dist
from common import PATIENCE, everywhere, hear, pairs_of_hosts, sync, tell


@pytest.mark.ranks(2)
@everywhere
def test_wrong_arguments(ranks, device):
    size = ranks.size
    group = dist.distributed_c10d._get_default_group()
    x = torch.ones(3, device=device)
    for call, text in [
        (lambda: group.send([x], size, 0), f"destination is rank {size} of a group of {size}"),
        (lambda: group.send([x], -1, 0), "rank -1"),
        (lambda: group.recv([x], size + 4, 0), f"source is rank {size + 4}"),
        (lambda: group.recv([x], -1, 0), "rank -1"),
        (lambda: dist.isend(x, 0, tag=-2), "tag is -2"),
        (lambda: dist.irecv(x, 0, tag=-2), "tag is -2"),
        (lambda: dist.irecv(x, tag=-2), "tag is -2"),
        (lambda: group.send([x, x], 0, 0), "one tensor"),
        (lambda: group.recv([x, x], 0, 0), "one tensor"),
    ]:
        with pytest.raises(ValueError, match=text):
            call()
    if device == "cpu":
        with pytest.raises(NotImplementedError):
            dist.isend(torch.ones(3).to_sparse(), 0)
    dist.all_reduce(x)  # the group is as it was
    assert x.eq(size).all()


def mismatched(rank, size, device, what, count):
    if rank == 0:
        work = dist.isend(torch.ones(count, device=device), 1, tag=4)
    elif what == "count":
        work = dist.irecv(torch.ones(count + 5, device=device), 0, tag=4)
    else:
        work = dist.irecv(torch.ones(count, device=device, dtype=torch.int32), 0, tag=4)
    with pytest.raises(dist.DistBackendError) as caught:
        work.wait()
        sync(device)
        # A short message is sent, and its memory free, before anybody looks at it.
        dist.recv(torch.ones(1, device=device), 1 - rank)
        sync(device)
    with pytest.raises(dist.DistBackendError):
        dist.isend(torch.ones(1, device=device), 1 - rank)
    return str(caught.value)


@everywhere
@pairs_of_hosts
@pytest.mark.parametrize("what", ["count", "dtype"])
@pytest.mark.parametrize("count", [10, 300_000])
def test_mismatch_names_both_sides(rank_pool, device, hosts, what, count):
    for text in rank_pool.run(2, mismatched, device, what, count, hosts=hosts):
        both = [str(count), str(count + 5)] if what == "count" else ["float32", "int32"]
        assert all(side in text for side in [*both, "rank 0", "rank 1"]), text


def peer_dies(rank, size, device, sends):
    x = torch.ones(400_000, device=device)
    dist.barrier()
    dist.all_reduce(x)
    sync(device)
    if rank == 1:
        hear("waiting")
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.isend(x, 1) if sends else dist.irecv(x, 1)
    unmatched = dist.irecv(x.clone())  # from any source: there is nobody left
    tell("waiting")
    with pytest.raises(dist.DistBackendError) as caught:
        work.wait()
        sync(device)
    with pytest.raises(dist.DistBackendError):
        unmatched.wait()
    return str(caught.value)


@everywhere
@pairs_of_hosts
@pytest.mark.parametrize("sends", [True, False], ids=["send", "recv"])
def test_dead_peer(rank_pool, device, hosts, sends):
    text = rank_pool.run(2, peer_dies, device, sends, hosts=hosts, dying=[1])[0]
    assert "rank 1" in text and "timed out" not in text, text


def peer_leaves(rank, size, device):
    x = torch.ones(10, device=device)
    dist.all_reduce(x)
    sync(device)
    if rank == 1:
        return None
    work = dist.irecv(x, 1)
    with pytest.raises(dist.DistBackendError) as caught:
        work.wait()
        sync(device)
    return str(caught.value)


@everywhere
@pairs_of_hosts
def test_peer_that_leaves(rank_pool, device, hosts):
    text = rank_pool.run(2, peer_leaves, device, hosts=hosts)[0]
    # Between hosts the end of the connection may be all that is seen.
    assert "rank 1" in text and ("left" in text or (hosts and "ended" in text)), text


def times_out(rank, size, device):
    x = torch.ones(10, device=device)
    dist.all_reduce(x)
    sync(device)
    if rank == 1:
        hear("timed out")
        return None
    dist.distributed_c10d._get_default_group().set_timeout(datetime.timedelta(milliseconds=300))
    work = dist.irecv(x, 1, tag=8)
    with pytest.raises(dist.DistBackendError) as caught:
        work.wait()
        sync(device)
    tell("timed out")
    assert not work.is_success()
    with pytest.raises(dist.DistBackendError):
        dist.isend(x, 1)
    return str(caught.value)


@everywhere
@pairs_of_hosts
def test_timeout(rank_pool, device, hosts):
    text = rank_pool.run(2, times_out, device, hosts=hosts)[0]
    assert "300 ms" in text and "rank 1" in text and "tag 8" in text, text


@pytest.mark.ranks(2)
@everywhere
def test_wait_with_a_timeout(ranks, device):
    """wait(timeout) gives up the wait and not the message."""
    x = torch.zeros(10, device=device)
    dist.all_reduce(x)
    if ranks.rank == 0:
        hear("gave up")
        dist.send(torch.ones(10, device=device), 1)
        return
    work = dist.irecv(x, 0)
    with pytest.raises(dist.DistBackendError, match="wait"):
        work.wait(datetime.timedelta(milliseconds=50))
    tell("gave up")
    work.wait()
    assert x.eq(1).all()


def aborts(rank, size, device):
    x = torch.ones(10, device=device)
    dist.all_reduce(x)
    # A rank whose connection for messages is still being made hears that it was refused.
    for tag in (10, 11):
        dist.send(x, 1 - rank, tag=tag) if rank == tag - 10 else dist.recv(x, 1 - rank, tag=tag)
    sync(device)
    works = [dist.irecv(x.clone(), 1 - rank, tag=1), dist.irecv(x.clone(), tag=2)]
    if rank == 0:
        hear("pending")
        dist.distributed_c10d._get_default_group()._get_backend(torch.device(device)).abort()
    else:
        tell("pending")
    texts = []
    for work in works:
        with pytest.raises(dist.DistBackendError) as caught:
            work.wait(PATIENCE)
        texts.append(str(caught.value))
    return texts


@everywhere
@pairs_of_hosts
def test_abort_while_pending(rank_pool, device, hosts):
    for texts in rank_pool.run(2, aborts, device, hosts=hosts):
        assert all("abort" in text for text in texts), texts


@pytest.mark.ranks(2)
@everywhere
def test_destroy_while_pending(ranks, device):
    x = torch.ones(10, device=device)
    dist.all_reduce(x)
    dist.distributed_c10d._get_default_group().set_timeout(datetime.timedelta(milliseconds=300))
    works = [dist.irecv(x, 1 - ranks.rank) for _ in range(3)]
    # Whoever destroys the group with a message under way aborts it: no other rank may still begin one.
    tell(f"rank {ranks.rank} has begun")
    hear(f"rank {1 - ranks.rank} has begun")
    dist.destroy_process_group()
    for work in works:
        with pytest.raises(dist.DistBackendError):
            work.wait()
            sync(device)


def pending_when_destroyed(rank, size, device):
    """What the other rank still expects is delivered before the group goes."""
    x = torch.full((700_000,), 1.0 + rank, device=device)
    works = [dist.isend(x, 1 - rank, tag=step) for step in range(4)]
    got = [torch.zeros_like(x) for _ in range(4)]
    works += [dist.irecv(tensor, 1 - rank, tag=step) for step, tensor in enumerate(got)]
    dist.destroy_process_group()
    for work in works:
        work.wait()
    sync(device)
    assert all(tensor.eq(2 - rank).all() for tensor in got)


@everywhere
@pairs_of_hosts
def test_destroy_delivers(rank_pool, device, hosts):
    rank_pool.run(2, pending_when_destroyed, device, hosts=hosts)


@pytest.mark.ranks(2)
def test_failed_stream(ranks):
    """A message behind a task that failed is never sent, and the peer hears of it."""
    x = torch.ones(10, device="vdev")
    dist.all_reduce(x)
    sync("vdev")
    if ranks.rank == 1:
        tell("through")  # the group's failure may end a collective that is still under way here
    else:
        hear("through")

        def fail():
            raise RuntimeError("the task failed")

        torch.vdev._launch_host_func(fail)
        work = dist.isend(x, 1)
        with pytest.raises(RuntimeError):
            work.wait(PATIENCE)
            sync("vdev")
        torch.vdev.clear_errors()
        return
    with pytest.raises(dist.DistBackendError, match="did not begin its send"):
        dist.recv(x, 0)
        sync("vdev")
