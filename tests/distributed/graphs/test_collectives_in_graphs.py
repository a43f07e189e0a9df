"""Collectives inside graphs: each replay is a call of its own on every rank."""

import pytest
import torch
import torch.distributed as dist
from common import PATIENCE


class Pinned:
    """A tensor on a card that takes its values from pinned memory, and leaves them there."""

    def __init__(self, count: int) -> None:
        self.host = torch.zeros(count).pin_memory()
        self.card = torch.zeros(count, device="vdev")
        self.back = torch.zeros(count).pin_memory()

    def take(self) -> torch.Tensor:
        return self.card.copy_(self.host, non_blocking=True)

    def leave(self) -> None:
        self.back.copy_(self.card, non_blocking=True)


def all_reduces(rank, async_op):
    data = Pinned(1000)
    graph = torch.vdev.VDEVGraph()
    dist.all_reduce(data.card)
    with torch.vdev.graph(graph):
        data.take()
        work = dist.all_reduce(data.card, async_op=async_op)
        if async_op:
            work.wait()
        data.leave()
    assert len(graph) == 3
    for step in range(1, 20):
        data.host.fill_(step * (rank + 1))
        graph.replay()
        torch.vdev.synchronize()
        assert data.back.tolist() == [3.0 * step] * 1000
    # Eager calls and replays have one order, on whatever streams.
    eager = torch.ones(3, device="vdev")
    torch.vdev.synchronize()
    with torch.vdev.stream(torch.vdev.Stream()):
        dist.all_reduce(eager, async_op=True)
        graph.replay()
        dist.all_reduce(eager)
    graph.replay()
    torch.vdev.synchronize()
    assert eager.tolist() == [4.0] * 3 and data.back.tolist() == [57.0] * 1000


@pytest.mark.ranks(2)
@pytest.mark.parametrize("async_op", [False, True])
def test_all_reduce(ranks, async_op):
    all_reduces(ranks.rank, async_op)


@pytest.mark.ranks(2, hosts=["here", "there"])
def test_all_reduce_between_hosts(ranks):
    all_reduces(ranks.rank, True)


@pytest.mark.ranks(3)
def test_many_collectives_and_groups(ranks):
    size, rank = ranks.size, ranks.rank
    other = dist.new_group()
    one, two = Pinned(6), Pinned(6)
    parts = torch.zeros(2, device="vdev")
    every = torch.zeros(6 * size, device="vdev")
    gathered = torch.zeros(6 * size).pin_memory()
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        one.take()
        two.take()
        works = [
            dist.broadcast(one.card, 1, async_op=True),
            dist.all_reduce(two.card, op=dist.ReduceOp.MAX, group=other, async_op=True),
        ]
        for work in works:
            work.wait()
        dist.reduce_scatter_tensor(parts, one.card, group=other)
        dist.all_gather_into_tensor(every, two.card)
        gathered.copy_(every, non_blocking=True)
        one.leave()
    for step in range(5):
        one.host.copy_(torch.arange(6.0) + step + rank)
        two.host.fill_(step * rank)
        graph.replay()
        torch.vdev.synchronize()
        assert one.back.tolist() == (torch.arange(6.0) + step + 1).tolist()
        assert parts.tolist() == [size * (step + 1.0 + 2 * rank), size * (step + 2.0 + 2 * rank)]
        assert gathered.tolist() == [step * (size - 1.0)] * 6 * size


@pytest.mark.ranks(2)
def test_coalesced_calls_and_strides(ranks):
    one, two = Pinned(4), Pinned(6)
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        one.take()
        two.take()
        with dist._coalescing_manager(async_ops=True) as manager:
            dist.all_reduce(one.card)
            dist.all_reduce(two.card)
        manager.wait()
        dist.all_reduce(two.card[::2])
        two.leave()
    for step in range(3):
        one.host.fill_(step)
        two.host.fill_(step)
        graph.replay()
        torch.vdev.synchronize()
        assert one.card.tolist() == [2.0 * step] * 4
        assert two.back.tolist() == [4.0 * step, 2.0 * step] * 3


@pytest.mark.ranks(2)
def test_failures_are_the_streams_and_the_groups(ranks):
    group = dist.new_group()
    data = Pinned(4)
    graphs = [torch.vdev.VDEVGraph() for _ in range(2)]
    sizes = [data.card, data.card[:3]]
    for graph, tensor in zip(graphs, sizes, strict=True):
        with torch.vdev.graph(graph):
            dist.all_reduce(tensor, group=group)
    graphs[0].replay()
    torch.vdev.synchronize()
    graphs[ranks.rank].replay()  # the ranks disagree
    for _ in range(2):
        with pytest.raises(dist.DistBackendError, match=r"all_reduce.*3 elements"):
            torch.vdev.synchronize()
    with pytest.raises(dist.DistBackendError, match=r"all_reduce.*3 elements"):
        data.card.sum().item()
    group.abort()
    torch.vdev.synchronize()
    graphs[0].replay()  # no hang: the group is gone
    with pytest.raises(dist.DistBackendError):
        torch.vdev.synchronize()
        data.card.sum().item()


def one_all_reduce():
    """Captures an all_reduce of a new group. Returns the group, its tensor's owner and the graph."""
    group = dist.new_group()
    data = Pinned(4)
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        dist.all_reduce(data.card, group=group)
    return group, data, graph


@pytest.mark.ranks(2)
def test_a_replay_that_does_not_run_fails_the_group(ranks):
    group, _, graph = one_all_reduce()
    dist.barrier()  # the other rank may still capture, and would hear of the abort there
    if ranks.rank == 0:

        def fail():
            raise ValueError("broken")

        torch.vdev._launch_host_func(fail)
    graph.replay()
    with pytest.raises((ValueError, RuntimeError), match=r"broken|did not run its all_reduce of a graph"):
        torch.vdev.synchronize()
    torch.vdev.clear_errors()
    group.abort()


@pytest.mark.ranks(2)
def test_a_graph_does_not_keep_its_group(ranks):
    group, _, graph = one_all_reduce()
    graph.replay()
    torch.vdev.synchronize()
    dist.destroy_process_group(group)
    del group
    graph.replay()
    with pytest.raises(dist.DistBackendError, match="destroyed"):
        torch.vdev.synchronize()


@pytest.mark.ranks(2)
def test_what_cannot_be_captured(ranks):
    x = torch.ones(4, device="vdev")
    dist.all_reduce(x)
    for call in [
        dist.barrier,
        lambda: dist.send(x, 1 - ranks.rank) if ranks.rank else dist.recv(x, 1 - ranks.rank),
        lambda: dist.all_reduce(x, async_op=True).wait(PATIENCE),
        lambda: dist.all_reduce(x, async_op=True).is_completed(),
    ]:
        with (
            torch.vdev.stream(torch.vdev.Stream()),
            pytest.raises(RuntimeError, match=r"invalidated.*not permitted"),
            torch.vdev.graph(torch.vdev.VDEVGraph()),
        ):
            call()
    with (
        torch.vdev.stream(torch.vdev.Stream()),
        pytest.raises(RuntimeError, match="unjoined work"),
        torch.vdev.graph(torch.vdev.VDEVGraph()),
    ):
        dist.all_reduce(x, async_op=True)
    dist.all_reduce(x)
    assert x.tolist() == [4.0] * 4


@pytest.mark.asynchronous
@pytest.mark.ranks(2)
def test_a_collective_of_a_failed_replay_is_not_read(ranks):
    """The collective's input comes from a kernel that fails on one rank in the second replay."""
    group = dist.new_group()
    source, index = torch.ones(8, device="vdev"), torch.zeros(4, dtype=torch.int64, device="vdev")
    source[index]
    dist.all_reduce(torch.ones(4, device="vdev"), group=group)
    torch.vdev.synchronize()
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        y = source[index]
        dist.all_reduce(y, group=group)
        z = y + 1
        healthy = source * 3
    graph.replay()
    assert y.tolist() == [2.0] * 4
    dist.barrier()
    if ranks.rank == 0:
        index.fill_(10**6)
    graph.replay()
    for tensor in (y, z):
        for _ in range(3):
            with pytest.raises((IndexError, dist.DistBackendError), match=r"out of bounds|did not run its"):
                tensor.tolist()
    for _ in range(3):
        with pytest.raises((IndexError, dist.DistBackendError)):
            torch.vdev.synchronize()
    assert healthy.tolist() == [3.0] * 8
    torch.vdev.clear_errors()
    for _ in range(3):  # the group's failure is dealt with through the group
        with pytest.raises(dist.DistBackendError):
            y.tolist()
    dist.destroy_process_group(group)


@pytest.mark.asynchronous
@pytest.mark.ranks(2)
@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_a_collective_runs_behind_a_failed_kernel_that_it_does_not_depend_on(ranks, async_op):
    source, index = torch.ones(8, device="vdev"), torch.zeros(4, dtype=torch.int64, device="vdev")
    source[index]
    torch.vdev.synchronize()
    if ranks.rank == 0:
        index.fill_(10**6)
    torch.vdev._sleep(1_000_000)
    y = torch.full((4,), 7.0, device="vdev")
    source[index]
    work = dist.all_reduce(y, async_op=async_op)
    if async_op:
        work.wait()
    for _ in range(3):
        try:
            assert y.tolist() == [14.0] * 4
        except IndexError:
            assert ranks.rank == 0
    assert y.tolist() == [14.0] * 4
    torch.vdev.clear_errors()
