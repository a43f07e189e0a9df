"""Sparse (COO) tensors of cards: all_reduce, and DistributedDataParallel with sparse gradients."""

import gc

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def elements(rank: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Two sparse dimensions and a dense one; indices that come twice; rank 1 has nothing."""
    generator = torch.Generator().manual_seed(rank)
    count = 0 if rank == 1 else 50
    indices = torch.randint(0, 6, (2, count), generator=generator)
    values = torch.randint(-3, 4, (count, 3), generator=generator).to(dtype)
    return torch.sparse_coo_tensor(
        indices.to(device), values.to(device), (6, 6, 3), device=device, check_invariants=True
    )


def reduced(rank, size):
    for device in ("vdev:0", "vdev:1"):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
                for async_op in (False, True):
                    mine, reference = elements(rank, dtype, device), elements(rank, dtype, "cpu")
                    work = dist.all_reduce(mine, op, async_op=async_op)
                    if async_op:
                        work.wait()
                    dist.all_reduce(reference, op)
                    assert mine.device == mine._values().device == torch.device(device)
                    assert mine.is_coalesced() and mine._nnz() == reference._nnz() > 0
                    assert torch.equal(mine.indices().cpu(), reference.indices())
                    assert torch.equal(mine.values().cpu(), reference.values())
    # torch takes complex tensors apart before it calls the group; called itself, the group adds them.
    mine, reference = elements(rank, torch.complex64, "vdev:0"), elements(rank, torch.complex64, "cpu")
    for tensor in (mine, reference):
        dist.group.WORLD.allreduce([tensor]).wait()
    assert mine.is_coalesced() and torch.equal(mine.cpu().to_dense(), reference.to_dense())
    nothing = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), [], (5,), device="vdev:0")
    dist.all_reduce(nothing)
    assert nothing._nnz() == 0


def test_all_reduce(rank_pool):
    rank_pool.run(3, reduced)
    rank_pool.run(2, reduced, hosts=["here", "there"])


@pytest.mark.ranks(2)
def test_order(ranks):
    rank, size = ranks.rank, ranks.size
    # What the caller's stream has yet to do comes first, and what it does next finds the result.
    stream = torch.vdev.Stream()
    with torch.vdev.stream(stream):
        values = torch.zeros(4, device="vdev")
        mine = torch.sparse_coo_tensor(torch.arange(4, device="vdev")[None], values, (4,), is_coalesced=True)
        source = torch.full((4,), rank + 1.0).pin_memory()
        mine._values().copy_(source, non_blocking=True)
        future = dist.all_reduce(mine, async_op=True).get_future()
        (result,) = future.wait()
        assert torch.equal(result.to_dense().cpu(), torch.full((4,), size * (size + 1) / 2.0))
        doubled = mine * 2
    stream.synchronize()
    assert torch.equal(doubled.cpu().to_dense(), torch.full((4,), size * (size + 1.0)))


@pytest.mark.ranks(2)
def test_memory_is_given_back():
    for _ in range(3):
        dist.all_reduce(elements(0, torch.float32, "vdev"))
    torch.vdev.synchronize()
    gc.collect()  # else what earlier tests have left in cycles may go in between
    before = torch.vdev.memory_allocated()
    for _ in range(20):
        dist.all_reduce(elements(0, torch.float32, "vdev"))
    torch.vdev.synchronize()
    assert torch.vdev.memory_allocated() == before


@pytest.mark.ranks(2)
def test_refused(ranks):
    mine = torch.eye(3, device="vdev").to_sparse()
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        with pytest.raises(NotImplementedError, match="SUM and AVG"):
            dist.all_reduce(mine, op)
    unsigned = torch.sparse_coo_tensor([[0]], torch.ones(1).to(torch.uint16), (3,), device="vdev")
    with pytest.raises(NotImplementedError, match="UInt16"):
        dist.all_reduce(unsigned)
    with pytest.raises(NotImplementedError, match="coalescing"):  # noqa: SIM117
        with dist._coalescing_manager(device=torch.device("vdev")):
            dist.group.WORLD.allreduce([mine])
    # Nothing was sent: the group goes on.
    dist.all_reduce(mine)
    assert torch.equal(mine.to_dense().cpu(), ranks.size * torch.eye(3))


@pytest.mark.ranks(2)
def test_different_shapes(ranks):
    group = dist.new_group()
    mine = torch.eye(4 + 2 * ranks.rank, device="vdev").to_sparse()
    with pytest.raises(RuntimeError, match=r"shape \[4, 4\].*rank 1 \[6, 6\]"):
        dist.all_reduce(mine, group=group)


class Words(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 4, sparse=True)
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.linear(self.embedding(words)).square().mean()


@pytest.mark.ranks(2, 3)
def test_ddp(ranks):
    rank, size = ranks.rank, ranks.size
    torch.manual_seed(0)
    alone = Words()
    model = DistributedDataParallel(Words().to("vdev"))
    model.module.load_state_dict(alone.state_dict())
    batches = torch.randint(0, 20, (4, size, 6), generator=torch.Generator().manual_seed(1))
    together = torch.optim.SGD(model.parameters(), lr=0.1)
    reference = torch.optim.SGD(alone.parameters(), lr=0.1)
    for batch in batches:
        together.zero_grad()
        model(batch[rank].to("vdev")).backward()
        assert model.module.embedding.weight.grad.is_sparse
        together.step()
        reference.zero_grad()
        sum(alone(part) for part in batch).div(size).backward()
        reference.step()
    for name, parameter in alone.named_parameters():
        torch.testing.assert_close(model.module.get_parameter(name).cpu(), parameter, msg=name)
