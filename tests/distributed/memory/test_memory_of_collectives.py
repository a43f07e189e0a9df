"""Memory that is freed while collectives are queued is reused in the order of its stream, as on a GPU."""

import threading

import pytest
import torch
import torch.distributed as dist
from gate import Gate
from torch import nn
from torch.distributed.fsdp import fully_shard

pytestmark = pytest.mark.asynchronous

ELEMENTS = 1 << 19  # whole blocks of the large pool


def fresh_pool():
    return torch.vdev.use_mem_pool(torch.vdev.MemPool())


def full(value: float, elements: int = ELEMENTS) -> torch.Tensor:
    return torch.full((elements,), value, device="vdev")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("strided", [False, True])
def test_a_block_is_reused_behind_a_queued_collective(ranks, strided):
    full(0).mul_(1), dist.all_reduce(full(0))
    with fresh_pool(), Gate() as gate:
        x, out = full(1), full(0)
        y = x.view(1024, -1).t() if strided else x
        dist.all_reduce(y)
        out.copy_(x)
        at, allocated = x.data_ptr(), torch.vdev.memory_allocated()
        del x, y
        z = full(5)
        assert z.data_ptr() == at and torch.vdev.memory_allocated() == allocated
        gate.open()
        assert out.eq(2).all().item() and z.eq(5).all().item()


@pytest.mark.ranks(2)
def test_scratch_memory_is_held_until_the_collective_has_run(ranks):
    """A stream that waits need not be the one that gets the memory next."""
    dist.all_reduce(full(0), async_op=True).wait()
    side = torch.vdev.Stream()
    with fresh_pool(), Gate() as gate:
        x = full(1)
        work = dist.all_reduce(x.view(1024, -1).t(), async_op=True)
        allocated = torch.vdev.memory_allocated()
        with torch.vdev.stream(side):
            work.wait()
        assert torch.vdev.memory_allocated() == allocated
        gate.open()
        torch.vdev.synchronize()
        assert x.eq(2).all().item()


@pytest.mark.ranks(2)
def test_memory_of_an_asynchronous_collective_is_held_until_the_wait(ranks):
    dist.all_reduce(full(0), async_op=True).wait()
    with fresh_pool(), Gate() as gate:
        x, out = full(ranks.rank + 1), full(0, 2 * ELEMENTS)
        work = dist.all_gather_into_tensor(out, x, async_op=True)
        at, before = x.data_ptr(), torch.vdev.memory_allocated()
        del x
        other = full(7)
        assert other.data_ptr() != at
        work.wait()
        z = full(9)  # the stream waits for the collective, whether or not it has run
        assert z.data_ptr() == at and torch.vdev.memory_allocated() == before + other.nbytes
        gate.open()
        assert out.view(2, -1).eq(torch.tensor([[1.0], [2.0]], device="vdev")).all().item()
        assert z.eq(9).all().item() and other.eq(7).all().item()


@pytest.mark.ranks(2)
def test_memory_of_a_message_is_held_until_the_wait(ranks):
    for _ in range(20):
        with fresh_pool(), Gate() as gate:
            x = full(3) if ranks.rank == 0 else full(0)
            kept = x if ranks.rank else None
            work = dist.isend(x, 1) if ranks.rank == 0 else dist.irecv(x, 0)
            at = x.data_ptr()
            del x
            other = full(7)
            assert other.data_ptr() != at
            gate.open()
            work.wait()
            if kept is not None:
                assert kept.eq(3).all().item()
            else:
                assert full(9).data_ptr() == at


@pytest.mark.ranks(2)
def test_memory_of_a_forgotten_work_is_held_until_the_collective_has_run(ranks):
    """Nobody waits, so nothing else protects the memory."""
    dist.all_reduce(full(0), async_op=True).wait()
    for step in range(20):
        with Gate() as gate:
            x, out = full(step), full(-1, 2 * ELEMENTS)
            dist.all_gather_into_tensor(out, x, async_op=True)
            del x
            other = full(-7)
            gate.open()
            dist.barrier()
            assert out.eq(step).all().item() and other.eq(-7).all().item()


@pytest.mark.ranks(2)
def test_a_graph_reuses_the_memory_of_its_collectives(ranks):
    x, out = full(1, 1000), full(0, 1000)
    dist.all_reduce(full(0, 1000))
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        places = set()
        for _ in range(3):
            y = x * 2
            dist.all_reduce(y)
            out += y
            places.add(y.data_ptr())
            del y
    assert len(places) == 1
    for step in range(1, 4):
        graph.replay()
        assert out.eq(12 * step).all().item()


@pytest.mark.ranks(2)
def test_the_peak_of_a_training_step_is_the_same_in_every_run(ranks):
    """And within what torch's own test of FSDP2 allows."""
    torch.manual_seed(0)
    size, blocks = 512, 4
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(size, size), nn.GELU(), nn.Linear(size, size)) for _ in range(blocks)]
    ).to("vdev")
    for block in model:
        fully_shard(block)
    fully_shard(model)
    x = torch.randn(2, size, device="vdev")

    def step() -> int:
        torch.vdev.synchronize()
        torch.vdev.reset_peak_memory_stats()
        before = torch.vdev.memory_allocated()
        model(x).sum().backward()
        torch.vdev.synchronize()
        model.zero_grad()
        return torch.vdev.max_memory_allocated() - before

    step()
    peaks = [step() for _ in range(5)]
    parameters = 2 * size * size * 4  # bytes of a block
    sharded = blocks * parameters // 2
    assert len(set(peaks)) == 1, peaks
    assert peaks[0] <= sharded + 4 * parameters + (1 << 20), peaks


def run_ahead(call, calls: int) -> int:
    """Calls so often while the card stands still. Returns how many bytes the calls held at most.

    The card goes on when the calls do not. On a busy machine that may be early, and the bound holds, too.
    """
    made, ended = 0, threading.Event()
    with fresh_pool(), Gate() as gate:

        def go_on():
            seen = -1
            while seen < made and not ended.wait(0.3):
                seen = made
            gate.open()

        watcher = threading.Thread(target=go_on)
        watcher.start()
        before = torch.vdev.memory_allocated()
        torch.vdev.reset_peak_memory_stats()
        for number in range(calls):
            call(torch.empty(128, device="vdev"))
            made = number + 1
        ended.set(), watcher.join()
        torch.vdev.synchronize()
    return torch.vdev.max_memory_allocated() - before


@pytest.mark.ranks(2)
def test_the_host_runs_ahead_of_collectives_within_bounds(ranks):
    """CUDA holds up the host when about 1,000 launches have not begun, which bounds their space."""
    dist.all_reduce(full(0), async_op=True).wait()
    calls = 4000
    held = run_ahead(lambda x: dist.all_reduce(x, async_op=True), calls)
    assert held < calls * 512 * 3 // 4
