"""torch.distributed._functional_collectives, eager and traced: as in one process, gradients too."""

import gradients
import newer_functional_names
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from common import everywhere
from gradients import Case, chunks, exchanged, received_by, sent_by

ops = torch.ops._c10d_functional


def total(xs: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(xs).sum(0)


def rows_sent(rank, size):
    return sum(sent_by(rank, size))


def world():
    return dist.group.WORLD


def reduced(op, expected):
    return Case(
        lambda x, rank, size: [funcol.all_reduce(x, op, world())],
        lambda xs: [[expected(torch.stack(xs))] for _ in xs],
        differentiable=op == "sum",
    )


def two(x):
    """Tensors of other shapes, as coalesced calls take them."""
    return [x, (x[:, :2] * 3).contiguous()]


def pairs(xs, of):
    firsts, seconds = of([two(x)[0] for x in xs]), of([two(x)[1] for x in xs])
    return [[first, second] for first, second in zip(firsts, seconds, strict=True)]


def shares(xs):
    return list(total(xs).chunk(len(xs)))


def raw_with_wait(x, rank, size):
    y = ops.all_reduce(x, "sum", world().group_name)
    return [funcol.wait_tensor(y) * 2]


def in_place(x, rank, size):
    """The operators that write into what they are given."""
    name = world().group_name
    y, z, w = x.clone(), x + rank, [x.clone(), x * 2]
    funcol.wait_tensor(ops.all_reduce_(y, "sum", name))
    funcol.wait_tensor(ops.broadcast_(z, size - 1, name))
    for tensor in ops.all_reduce_coalesced_(w, "sum", name):
        funcol.wait_tensor(tensor)
    gathered = x.new_empty(size * len(x), 3)
    funcol.wait_tensor(ops.all_gather_into_tensor_out(x, size, name, out=gathered))
    return [y, z, *w, gathered]


def expected_in_place(xs):
    last = len(xs) - 1
    return [[total(xs), xs[-1] + last, total(xs), 2 * total(xs), torch.cat(xs)] for _ in xs]


def usual_calls(x, rank, size):
    """The calls of torch.distributed, which a compiler replaces by functional ones."""
    y = x.clone()
    dist.all_reduce(y)
    gathered = x.new_empty(size * len(x), 3)
    dist.all_gather_into_tensor(gathered, x)
    share = x.new_empty(len(x) // size, 3)
    dist.reduce_scatter_tensor(share, x)
    swapped = torch.empty_like(x)
    dist.all_to_all_single(swapped, x)
    listed = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(listed, x)
    return [y + 0, gathered + 0, share + 0, swapped + 0, *[part + 0 for part in listed]]


def expected_usual_calls(xs):
    size = len(xs)
    swapped = [torch.cat([chunks(x, size)[rank] for x in xs]) for rank in range(size)]
    return [[total(xs), torch.cat(xs), shares(xs)[rank], swapped[rank], *xs] for rank in range(size)]


CASES = {
    "broadcast": Case(
        lambda x, rank, size: [funcol.broadcast(x, size - 1, world())],
        lambda xs: [[xs[-1]] for _ in xs],
        differentiable=False,
    ),
    "all_reduce sum": reduced("sum", lambda stacked: stacked.sum(0)),
    "all_reduce avg": reduced("avg", lambda stacked: stacked.mean(0)),
    "all_reduce max": reduced("max", lambda stacked: stacked.amax(0)),
    "all_reduce min": reduced("min", lambda stacked: stacked.amin(0)),
    "all_reduce product": reduced("product", lambda stacked: stacked.prod(0)),
    "all_reduce, waited for by hand": Case(raw_with_wait, lambda xs: [[2 * total(xs)] for _ in xs]),
    "all_reduce of a transposed tensor": Case(
        lambda x, rank, size: [funcol.all_reduce(x.t().contiguous().t(), "sum", world())],
        lambda xs: [[total(xs)] for _ in xs],
    ),
    "all_gather_single": Case(
        lambda x, rank, size: [newer_functional_names.all_gather_single(x, 0, world())],
        lambda xs: [[torch.cat(xs)] for _ in xs],
    ),
    "all_gather_single of columns": Case(
        lambda x, rank, size: [newer_functional_names.all_gather_single(x, 1, world())],
        lambda xs: [[torch.cat(xs, 1)] for _ in xs],
    ),
    "all_gather_single_autograd": Case(
        lambda x, rank, size: [newer_functional_names.all_gather_single_autograd(x, 0, world())],
        lambda xs: [[torch.cat(xs)] for _ in xs],
    ),
    "reduce_scatter_single": Case(
        lambda x, rank, size: [newer_functional_names.reduce_scatter_single(x, "sum", 0, world())],
        lambda xs: [[share] for share in shares(xs)],
    ),
    "reduce_scatter_single of columns": Case(
        lambda x, rank, size: [newer_functional_names.reduce_scatter_single(x.t(), "sum", 1, world())],
        lambda xs: [[share] for share in total([x.t() for x in xs]).chunk(len(xs), 1)],
    ),
    "reduce_scatter_single avg": Case(
        lambda x, rank, size: [newer_functional_names.reduce_scatter_single(x, "avg", 0, world())],
        lambda xs: [[share / len(xs)] for share in shares(xs)],
        differentiable=False,
    ),
    "reduce_scatter_single_autograd": Case(
        lambda x, rank, size: [newer_functional_names.reduce_scatter_single_autograd(x, "sum", 0, world())],
        lambda xs: [[share] for share in shares(xs)],
    ),
    "all_reduce_coalesced": Case(
        lambda x, rank, size: funcol.all_reduce_coalesced(two(x), "sum", world()),
        lambda xs: pairs(xs, lambda parts: [total(parts) for _ in parts]),
    ),
    "all_gather_single_coalesced": Case(
        lambda x, rank, size: newer_functional_names.all_gather_single_coalesced(two(x), world()),
        lambda xs: pairs(xs, lambda parts: [torch.cat(parts) for _ in parts]),
    ),
    "reduce_scatter_single_coalesced": Case(
        lambda x, rank, size: newer_functional_names.reduce_scatter_single_coalesced(
            two(x), "sum", [0, 0], world()
        ),
        lambda xs: pairs(xs, shares),
    ),
    "all_to_all_single": Case(
        lambda x, rank, size: [funcol.all_to_all_single(x, None, None, world())],
        lambda xs: [[torch.cat([chunks(x, len(xs))[rank] for x in xs])] for rank in range(len(xs))],
        differentiable=False,
    ),
    "all_to_all_single_autograd with splits": Case(
        lambda x, rank, size: [
            funcol.all_to_all_single_autograd(x, received_by(rank, size), sent_by(rank, size), world())
        ],
        lambda xs: [[torch.cat(parts)] for parts in exchanged(xs)],
        rows_sent,
    ),
    "permute_tensor": Case(
        lambda x, rank, size: [
            funcol.permute_tensor(x.flatten(), [(r + 1) % size for r in range(size)], world())
        ],
        lambda xs: [[xs[rank - 1].flatten()] for rank in range(len(xs))],
        differentiable=False,
    ),
    "in place": Case(in_place, expected_in_place, differentiable=False),
    "the usual calls": Case(usual_calls, expected_usual_calls, differentiable=False),
}


@pytest.mark.ranks(1, 2, 3)
@everywhere
def test_eager(ranks, device):
    for name, case in CASES.items():
        gradients.check(case, ranks.rank, ranks.size, device, name)


def check_compiled(ranks, device, name):
    torch._dynamo.reset()
    case = CASES[name]
    compiled = torch.compile(case.call, backend="aot_eager", fullgraph=True)
    gradients.check(case, ranks.rank, ranks.size, device, name, compiled)


@pytest.mark.ranks(2)
@everywhere
@pytest.mark.parametrize("part", [0, 1, 2])
def test_under_compile(ranks, device, part):
    for name in TRACED[part::3]:
        check_compiled(ranks, device, name)


@pytest.mark.torch(">=2.13", "Dynamo does not trace what puts the columns together, whatever the backend")
@pytest.mark.ranks(2)
@everywhere
def test_gathering_columns_under_compile(ranks, device):
    check_compiled(ranks, device, COLUMNS)


COLUMNS = "all_gather_single of columns"
# Permuting looks for its group by ranks; torch does not trace operators that return what they write into.
TRACED = [name for name in CASES if name not in ("permute_tensor", "in place", COLUMNS)]


@pytest.mark.ranks(2)
@everywhere
def test_waits_when_used(ranks, device):
    """What eager calls return waits when it is first used, on the stream that uses it."""
    rank, size = ranks.rank, ranks.size
    x = torch.full((1000,), rank + 1.0, device=device)
    y = funcol.all_reduce(x, "sum", world())
    assert isinstance(y, funcol.AsyncCollectiveTensor)
    assert not y.completed
    assert (y * 2)[0].item() == size * (size + 1)
    several = [funcol.all_reduce(x * i, "sum", world()) for i in range(20)]
    for i, result in reversed(list(enumerate(several))):
        assert result.wait().tolist() == [i * size * (size + 1) / 2] * 1000


@pytest.mark.ranks(4)
@everywhere
def test_of_subgroups(ranks, device):
    """The ways to say which ranks take part."""
    rank, size = ranks.rank, ranks.size
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device, (2, size // 2), mesh_dim_names=("rows", "columns"))
    row = [rank // 2 * 2, rank // 2 * 2 + 1]
    x = torch.full((4,), float(rank), device=device)
    for group in (row, mesh["columns"], (mesh, 1), mesh.get_group("columns")):
        y = funcol.all_reduce(x, "sum", group)
        assert y.tolist() == [float(sum(row))] * 4
    assert funcol.all_reduce(x, "sum", (mesh, 0)).tolist() == [float(rank % 2 * 2 + 2)] * 4


@pytest.mark.ranks(4)
@everywhere
def test_point_to_point(ranks, device):
    """Around the ring, through operators that a compiler can trace."""
    rank, size = ranks.rank, ranks.size
    right, left = (rank + 1) % size, (rank - 1) % size
    name = world().group_name
    x = torch.full((5,), float(rank), device=device)
    received = torch.empty_like(x)
    sent, came = ops.batch_p2p_ops(["isend", "irecv"], [right, left], [0, 0], [x, received], name)
    # torch keeps the work of a send until somebody waits for what it returned and for what was sent.
    funcol.wait_tensor(sent)
    funcol.wait_tensor(x)
    assert funcol.wait_tensor(came).tolist() == [float(left)] * 5
    for turn in range(2):
        if rank % 2 == turn:
            funcol.wait_tensor(ops.isend(x, right, 0, name))
            funcol.wait_tensor(x)
        else:
            received = torch.empty_like(x)
            assert funcol.wait_tensor(ops.irecv(received, left, 0, name)).tolist() == [float(left)] * 5
