"""torch.distributed.nn.functional: the results and the gradients are those of one process."""

import gradients
import pytest
import torch
import torch.distributed as dist
from gradients import Case, chunks, exchanged, received_by, sent_by
from torch.distributed.nn import functional

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def total(xs: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(xs).sum(0)


def only(root: int, value: list[torch.Tensor], size: int) -> list:
    """`value` on one rank; what the others hold is not defined."""
    return [value if rank == root else None for rank in range(size)]


def all_to_all(x, rank, size):
    parts = list(x.split(sent_by(rank, size)))
    return list(functional.all_to_all([x.new_empty(rows, 3) for rows in received_by(rank, size)], parts))


def all_to_all_single_uneven(x, rank, size):
    theirs, mine = received_by(rank, size), sent_by(rank, size)
    return [functional.all_to_all_single(x.new_empty(sum(theirs), 3), x, theirs, mine)]


def rows_sent(rank, size):
    return sum(sent_by(rank, size))


CASES = {
    "all_reduce": Case(
        lambda x, rank, size: [functional.all_reduce(x)], lambda xs: [[total(xs)] for _ in xs]
    ),
    "all_reduce twice": Case(
        lambda x, rank, size: [functional.all_reduce(functional.all_reduce(x) * x)],
        lambda xs: [[total([total(xs) * x for x in xs])] for _ in xs],
    ),
    "reduce": Case(
        lambda x, rank, size: [functional.reduce(x, size - 1)],
        lambda xs: only(len(xs) - 1, [total(xs)], len(xs)),
    ),
    "broadcast": Case(
        lambda x, rank, size: [functional.broadcast(x, size - 1)], lambda xs: [[xs[-1]] for _ in xs]
    ),
    "gather": Case(
        lambda x, rank, size: list(functional.gather(x, size - 1)),
        lambda xs: only(len(xs) - 1, list(xs), len(xs)),
    ),
    "scatter": Case(
        lambda x, rank, size: [functional.scatter(chunks(x, size), size - 1)],
        lambda xs: [[part] for part in chunks(xs[-1], len(xs))],
    ),
    "all_gather": Case(
        lambda x, rank, size: list(functional.all_gather(x)), lambda xs: [list(xs) for _ in xs]
    ),
    "_all_gather_base": Case(
        lambda x, rank, size: [functional._all_gather_base(x.new_empty(size * len(x), 3), x)],
        lambda xs: [[torch.cat(xs)] for _ in xs],
    ),
    "reduce_scatter": Case(
        lambda x, rank, size: [functional.reduce_scatter(x.new_empty(len(x) // size, 3), chunks(x, size))],
        lambda xs: [[part] for part in chunks(total(xs), len(xs))],
    ),
    "all_to_all": Case(all_to_all, exchanged, rows_sent),
    "all_to_all_single": Case(
        lambda x, rank, size: [functional.all_to_all_single(torch.empty_like(x), x)],
        lambda xs: [[torch.cat([chunks(x, len(xs))[rank] for x in xs])] for rank in range(len(xs))],
    ),
    "all_to_all_single with splits": Case(
        all_to_all_single_uneven, lambda xs: [[torch.cat(parts)] for parts in exchanged(xs)], rows_sent
    ),
}


def every_case(rank, size, device):
    for name, case in CASES.items():
        gradients.check(case, rank, size, device, name)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("device", ["vdev", "cpu"])
def test_results_and_gradients(ranks, device):
    every_case(ranks.rank, ranks.size, device)


@pytest.mark.ranks(3, hosts=["here", "there", "there"])
def test_results_and_gradients_over_two_hosts(ranks):
    every_case(ranks.rank, ranks.size, "vdev")


@pytest.mark.ranks(2, group=False)
def test_results_and_gradients_in_a_mixed_group(ranks):
    dist.init_process_group("cpu:gloo,vdev:vccl", store=ranks.store, rank=ranks.rank, world_size=ranks.size)
    every_case(ranks.rank, ranks.size, "vdev")


@pytest.mark.ranks(2)
def test_needs_the_changed_backward(ranks):
    """Torch itself refuses this one, by the backend's name."""
    x = torch.ones(2, 3, device="vdev", requires_grad=True)
    y = functional._all_gather_base(x.new_empty(2 * ranks.size, 3), x)
    with pytest.raises(RuntimeError, match="Backend not supported!"):
        functional._AllGatherBase.backward.__wrapped__(y.grad_fn, torch.ones_like(y))
