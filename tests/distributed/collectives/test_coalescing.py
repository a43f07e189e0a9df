"""Calls that are launched together: batch_isend_irecv and torch's coalescing manager; and pipelines."""

import random

import pytest
import torch
import torch.distributed as dist
from common import every_place, everywhere, sync
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)


def default_group():
    return dist.distributed_c10d._get_default_group()


def value(source, destination, step):
    return float(100 * source + 10 * destination + step)


def shuffled_batches(rank, size, device):
    """All to all, several messages a pair: each rank in an order of its own, save within a direction."""
    for count in (0, 1, 300, 90_001):
        for seed in range(4):
            lanes, got = [], {}
            for other in range(size):
                sends = [
                    (dist.isend, torch.full((count,), value(rank, other, s), device=device)) for s in range(3)
                ]
                got[other] = [torch.full((count,), -1.0, device=device) for _ in range(3)]
                lanes.append([(op, x, other) for op, x in sends])
                lanes.append([(dist.irecv, x, other) for x in got[other]])
            order = random.Random(100 * seed + rank)
            ops = []
            while lanes:
                lane = order.choice(lanes)
                op, x, other = lane.pop(0)
                ops.append(dist.P2POp(op, x, other))
                lanes = [left for left in lanes if left]
            works = dist.batch_isend_irecv(ops)
            assert len(works) == 1
            for work in works:
                work.wait()
            for other in range(size):
                for step, x in enumerate(got[other]):
                    assert x.eq(value(other, rank, step)).all(), (count, seed, other, step)
            assert works[0].is_success()


@everywhere
@every_place
def test_batches_in_any_order(rank_pool, size, hosts, device):
    rank_pool.run(size, shuffled_batches, device, hosts=hosts)


@pytest.mark.ranks(3)
@everywhere
def test_batch_meets_plain_calls(ranks, device):
    """A batch meets plain calls on the other side, with tags; the third rank has no part in it."""
    dist.barrier()
    dist.all_reduce(torch.ones(1, device=device))
    if ranks.rank == 0:
        xs = [torch.full((5000,), float(tag), device=device) for tag in range(4)]
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1, tag=i) for i, x in enumerate(xs)]):
            work.wait()
    elif ranks.rank == 1:
        for tag in (2, 0, 3, 1):
            x = torch.zeros(5000, device=device)
            dist.recv(x, 0, tag=tag)
            assert x.eq(tag).all()


def managed_reductions(rank, size, device, async_ops):
    group = default_group()
    xs = [torch.full((count,), float(rank + count), device=device) for count in (3, 1, 70_000)]
    before = group._get_sequence_number_for_group()
    with _coalescing_manager(async_ops=async_ops) as manager:
        for x in xs:
            dist.all_reduce(x)
    if async_ops:
        assert len(manager.works) == 1
        manager.wait()
    assert group._get_sequence_number_for_group() == before + 1
    for x in xs:
        assert x.eq(sum(range(size)) + size * x.numel()).all()

    inputs = [torch.full((count,), float(rank), device=device) for count in (2, 40_000)]
    outputs = [torch.zeros(size * x.numel(), device=device) for x in inputs]
    with _coalescing_manager(async_ops=async_ops) as manager:
        for x, y in zip(inputs, outputs, strict=True):
            dist.all_gather_into_tensor(y, x)
    manager.wait()
    for x, y in zip(inputs, outputs, strict=True):
        assert torch.equal(y.cpu(), torch.arange(float(size)).repeat_interleave(x.numel()))

    shards = [torch.zeros_like(x) for x in inputs]
    with _coalescing_manager(async_ops=async_ops) as manager:
        for shard, y in zip(shards, outputs, strict=True):
            dist.reduce_scatter_tensor(shard, y)
    manager.wait()
    for shard in shards:
        assert shard.eq(size * rank).all()


@pytest.mark.ranks(1, 2, 4)
@everywhere
@pytest.mark.parametrize("async_ops", [False, True], ids=["sync", "async"])
def test_manager_of_reductions(ranks, device, async_ops):
    managed_reductions(ranks.rank, ranks.size, device, async_ops)


def managed_mixture(rank, size, device, async_ops):
    """The manager that is given a device: whatever is called, messages among it, becomes one work."""
    here = torch.device(device, rank) if device == "vdev" else torch.device(device)
    right, left = (rank + 1) % size, (rank - 1) % size
    root, got = torch.full((1000,), float(rank), device=device), torch.zeros(1000, device=device)
    sent = torch.full((1000,), 7.0 + rank, device=device)
    chained = torch.full((1000,), float(rank), device=device)
    parts = [torch.zeros(1000, device=device).view(50, 20).t() for _ in range(size)]
    with _coalescing_manager(device=here, async_ops=async_ops) as manager:
        assert dist.irecv(got, left) is not None
        dist.broadcast(root, size - 1, async_op=True)
        dist.broadcast(chained, 0)
        dist.isend(sent, right)
        dist.all_gather(parts, chained.view(50, 20).t())
        early = dist.isend(sent, right, tag=1)
        with pytest.raises(RuntimeError, match="coalescing manager"):
            early.wait()
        assert not early.is_completed()
        late = torch.zeros_like(got)
        dist.irecv(late, left, tag=1)
    if async_ops:
        assert len(manager.works) == 1
        manager.wait()
        early.wait()
        assert manager.works[0].get_future().wait() is not None
    sync(device)
    assert early.is_completed() and early.is_success()
    assert got.eq(7 + left).all() and late.eq(7 + left).all()
    assert root.eq(size - 1).all() and chained.eq(0).all()
    assert all(part.eq(0).all() for part in parts)


@everywhere
@pytest.mark.parametrize("async_ops", [False, True], ids=["sync", "async"])
@every_place
def test_manager_of_a_mixture(rank_pool, size, hosts, device, async_ops):
    rank_pool.run(size, managed_mixture, device, async_ops, hosts=hosts)


@pytest.mark.ranks(2)
@everywhere
def test_nothing_called(ranks, device):
    here = torch.device(device)
    for async_ops in (False, True):
        with _coalescing_manager(async_ops=async_ops) as manager:
            pass
        with _coalescing_manager(device=here, async_ops=async_ops) as manager:
            pass
        assert manager.works == []
    backend = default_group()._get_backend(here)
    assert backend.supports_coalescing
    with pytest.raises(RuntimeError, match="startCoalescing"):
        default_group()._end_coalescing(here)
    x = torch.ones(3, device=device)
    dist.all_reduce(x)
    assert x.eq(ranks.size).all()


@pytest.mark.ranks(2)
@everywhere
def test_exception_inside(ranks, device):
    rank, size = ranks.rank, ranks.size
    here = torch.device(device)
    x = torch.full((10,), 1.0, device=device)
    for given in (here, None):
        with pytest.raises(ZeroDivisionError), _coalescing_manager(device=given):
            dist.broadcast(x, 0) if given else dist.all_reduce(x)
            raise ZeroDivisionError
    # An error of one of the calls: what was called before it is not launched either.
    with pytest.raises(ValueError, match="tag is -5"):
        dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, x.clone(), 1 - rank, tag=-5)]
        )
    other = torch.ones(10, device="cpu" if device == "vdev" else "vdev")
    with pytest.raises(ValueError, match="cannot be coalesced"), _coalescing_manager(device=here):
        dist.broadcast(x, 0)
        dist.broadcast(other, 0)
    # Without torch's manager: the next start drops what was collected.
    default_group()._start_coalescing(here)
    dist.broadcast(x, 0)
    default_group()._start_coalescing(here)
    dist.broadcast(x, 0)
    default_group()._end_coalescing(here).wait()
    sync(device)
    assert x.eq(1).all()
    assert default_group()._get_sequence_number_for_group() == 1  # the last one alone
    dist.all_reduce(x)
    assert x.eq(size).all()
    got = torch.zeros(10, device=device)
    works = [dist.isend(x, 1 - rank), dist.irecv(got, 1 - rank)]
    for work in works:
        work.wait()
    assert got.eq(size).all()


@pytest.mark.ranks(2)
@everywhere
def test_other_threads(ranks, device):
    """What other threads call meanwhile goes on its way."""
    import threading

    here = torch.device(device)
    x, y = torch.ones(100, device=device), torch.ones(100, device=device)
    done = []

    def meanwhile():
        torch.accelerator.set_device_index(ranks.rank)
        dist.broadcast(y, 0)
        done.append(dist.isend(y, ranks.rank, tag=9).wait())

    with _coalescing_manager(device=here, async_ops=True) as manager:
        dist.broadcast(x, 0)
        thread = threading.Thread(target=meanwhile)
        thread.start()
        thread.join()
        assert done
    manager.wait()
    got = torch.zeros(100, device=device)
    dist.irecv(got, ranks.rank, tag=9).wait()
    assert got.eq(1).all() and x.eq(1).all()


@pytest.mark.ranks(2)
@everywhere
def test_mismatch_in_a_batch(ranks, device):
    rank = ranks.rank
    x = torch.ones(50_000, device=device)
    dist.all_reduce(x)
    ops = [
        dist.P2POp(dist.isend, x[: 20_000 + rank].clone(), 1 - rank),
        dist.P2POp(dist.irecv, x[:20_000].clone(), 1 - rank),
    ]
    with pytest.raises(dist.DistBackendError) as caught:
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        sync(device)
        dist.all_reduce(x)
        sync(device)
    text = str(caught.value)
    assert "20000" in text and "20001" in text, text


WIDTH, BATCH, CHUNKS = 16, 24, 6


def layers(number):
    torch.manual_seed(7)
    return [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(number)]


def loss_of(output, target):
    return torch.nn.functional.mse_loss(output, target)


def trained_serially(number, steps):
    model = torch.nn.Sequential(*layers(number))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        x, target = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
        optimizer.zero_grad()
        chunks = [loss_of(model(a), b) for a, b in zip(x.chunk(CHUNKS), target.chunk(CHUNKS), strict=True)]
        (sum(chunks) / CHUNKS).backward()
        losses.append([chunk.item() for chunk in chunks])
        optimizer.step()
    return model, losses


def pipeline(rank, size, device, schedule_name, steps=3):
    """Trains a model of one layer a stage, and compares it with the same model trained in one place."""
    interleaved = schedule_name == "interleaved"
    number = 2 * size if interleaved else size
    mine = [rank, rank + size] if interleaved else [rank]
    here = torch.device(device, rank) if device == "vdev" else torch.device(device)
    every = layers(number)
    stages = [PipelineStage(every[i].to(here), i, number, here) for i in mine]
    if interleaved:
        schedule = ScheduleInterleaved1F1B(stages, CHUNKS, loss_fn=loss_of)
    else:
        kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[schedule_name]
        schedule = kind(stages[0], CHUNKS, loss_fn=loss_of)
    optimizer = torch.optim.SGD([p for stage in stages for p in stage.submod.parameters()], lr=0.1)
    reference, expected = trained_serially(number, steps)
    for step in range(steps):
        torch.manual_seed(step)
        x, target = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
        optimizer.zero_grad()
        losses = []
        inputs = [x.to(here)] if rank == 0 else []
        if rank == size - 1:
            schedule.step(*inputs, target=target.to(here), losses=losses)
            torch.testing.assert_close(torch.stack(losses).cpu(), torch.tensor(expected[step]))
        else:
            schedule.step(*inputs)
        optimizer.step()
    for i, stage in zip(mine, stages, strict=True):
        for got, want in zip(stage.submod.parameters(), reference[i].parameters(), strict=True):
            torch.testing.assert_close(got.detach().cpu(), want.detach())


@everywhere
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
@pytest.mark.parametrize("size, hosts", [(2, ()), (2, ("a", "b")), (3, ())], ids=["2", "2_hosts", "3"])
def test_pipeline(rank_pool, size, hosts, device, schedule):
    rank_pool.run(size, pipeline, device, schedule, hosts=hosts)
