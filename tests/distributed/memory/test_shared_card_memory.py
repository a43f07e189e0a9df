"""Collectives and messages over a card's memory that another process has sent (torch.multiprocessing)."""

import multiprocessing
from multiprocessing.connection import Client, Listener

import pytest
import torch
import torch.distributed as dist

VALUES = 100_000


def exchange(rank: int, path: str, sent: list[torch.Tensor]) -> list[torch.Tensor]:
    """Rank 0 sends tensors to rank 1, and returns its own; rank 1 returns them as received."""
    if rank == 0:
        with Listener(path, "AF_UNIX") as listener:
            dist.barrier()
            with listener.accept() as connection:
                connection.send(sent)
                assert connection.poll(300)
                assert connection.recv() == "received"
        return sent
    dist.barrier()
    with Client(path, "AF_UNIX") as connection:
        assert connection.poll(300)
        received = connection.recv()
        connection.send("received")
    return received


@pytest.mark.ranks(2)
def test_collectives_on_memory_of_another_process(ranks, tmp_path):
    rank = ranks.rank
    path = str(tmp_path / "socket")
    device = f"vdev:{rank}"
    torch.vdev.set_device(device)
    theirs, spare = exchange(rank, path, [torch.ones(VALUES, device="vdev:0") for _ in range(2)])
    assert str(theirs.device) == "vdev:0"
    if rank == 1:  # rank 1 has no communicator on that card, so it makes one from what it has
        torch.vdev.set_device(0)
    group = dist.new_group()
    # Rank 0 works on memory of its own, so that the two do not write to one place.
    mine = theirs if rank == 1 else torch.full((VALUES,), 2.0, device="vdev:0")
    dist.all_reduce(mine, group=group)
    assert mine.unique().tolist() == [3.0]
    gathered = [torch.zeros(VALUES, device="vdev:0") for _ in range(2)]
    if rank == 1:
        gathered[0] = spare
    dist.all_gather(gathered, mine + rank, group=group)
    assert [each.unique().tolist() for each in gathered] == [[3.0], [4.0]]
    if rank == 1:
        dist.send(theirs + 1, 0, group=group)
        theirs.fill_(7)
        dist.send(theirs, 0, group=group)
        dist.recv(theirs, 0, group=group)
        assert theirs.unique().tolist() == [9.0]
        torch.vdev.synchronize(0)
        dist.barrier(group=group)
    else:
        for expected in (4.0, 7.0):
            received = torch.zeros(VALUES, device="vdev:0")
            dist.recv(received, 1, group=group)
            assert received.unique().tolist() == [expected]
        dist.send(torch.full((VALUES,), 9.0, device="vdev:0"), 1, group=group)
        dist.barrier(group=group)
        assert theirs.unique().tolist() == [9.0]  # what rank 1 has received lies here
        assert spare.unique().tolist() == [3.0]


@pytest.mark.ranks(2)
def test_what_a_failed_collective_should_have_written_is_not_sent(ranks):
    group = dist.new_group()
    x = torch.ones(3 + ranks.rank, device="vdev")
    ours, theirs = multiprocessing.Pipe()
    with pytest.raises(dist.DistBackendError, match=r"all_reduce.*3 elements"):
        dist.all_reduce(x, group=group)
        ours.send(x)
    with pytest.raises(dist.DistBackendError, match=r"all_reduce.*3 elements"):
        ours.send([x])
    x.fill_(1)
    ours.send(x)
    assert theirs.recv().data_ptr() == x.data_ptr()
