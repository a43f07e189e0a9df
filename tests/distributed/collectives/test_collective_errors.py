"""Calls that are wrong, and what the errors say."""

import functools

import pytest
import torch
import torch.distributed as dist
from common import everywhere
from newer_names import all_gather_single, reduce_scatter_single
from torch._C import _distributed_c10d as c10d


def wrong_calls(rank, size, device):
    """Every case: what is called, the error's type, and words of its text."""
    group = dist.group.WORLD
    other = "cpu" if device == "vdev" else "vdev"
    here = f"vdev:{rank}" if device == "vdev" else "cpu"

    def ones(*shape, **options):
        return torch.ones(shape, device=options.pop("device", device), **options)

    def many(number=size, *shape, **options):
        return [ones(*(shape or (4,)), **options) for _ in range(number)]

    def options(kind, **values):
        result = kind()
        for name, value in values.items():
            setattr(result, name, value)
        return result

    x, buffer = ones(4), ones(size * 8)
    premul = dist._make_nccl_premul_sum
    yield (
        lambda: dist.broadcast(x, size),
        ValueError,
        ["broadcast", f"source is rank {size}", f"{size} ranks"],
    )
    yield lambda: group.broadcast([x], options(c10d.BroadcastOptions, rootRank=-1)), ValueError, ["rank -1"]
    yield lambda: group.reduce([x], options(c10d.ReduceOptions, rootRank=9)), ValueError, ["reduce", "rank 9"]
    bad_root = options(c10d.GatherOptions, rootRank=9)
    yield lambda: group.gather([many()], [x], bad_root), ValueError, ["gather", "destination is rank 9"]
    bad_root = options(c10d.ScatterOptions, rootRank=9)
    yield lambda: group.scatter([x], [many()], bad_root), ValueError, ["scatter", "source is rank 9"]

    # Lists of wrong length.
    short = f"{size - 1} {{}} tensors for a group of {size} ranks"
    yield lambda: dist.all_gather(many(size - 1), x), ValueError, ["all_gather", short.format("output")]
    yield lambda: dist.reduce_scatter(x, many(size + 1)), ValueError, [f"{size + 1} input tensors"]
    yield lambda: dist.all_to_all(many(), many(size - 1)), ValueError, [short.format("input")]
    yield lambda: dist.all_to_all(many(size - 1), many()), ValueError, [short.format("output")]
    root = options(c10d.GatherOptions, rootRank=rank)
    yield lambda: group.gather([many(size - 1)], [x], root), ValueError, ["gather", short.format("output")]
    root = options(c10d.ScatterOptions, rootRank=rank)
    yield lambda: group.scatter([x], [many(size + 1)], root), ValueError, [f"{size + 1} input tensors"]
    elsewhere = options(c10d.GatherOptions, rootRank=(rank + 1) % size)
    yield (
        lambda: group.gather([many()], [x], elsewhere),
        ValueError,
        ["this rank gave a list of outputs"],
    )
    elsewhere = options(c10d.ScatterOptions, rootRank=(rank + 1) % size)
    yield (
        lambda: group.scatter([x], [many()], elsewhere),
        ValueError,
        ["this rank gave a list of inputs"],
    )
    yield lambda: group.allreduce([x, x]), ValueError, ["one tensor a call, and was given 2"]
    coalesced = c10d.AllreduceCoalescedOptions()
    yield lambda: group.allgather_coalesced([[x]] * (size - 1), [x]), ValueError, ["lists of outputs"]
    yield lambda: group.allgather_coalesced([[x, x]] * size, [x]), ValueError, ["2 outputs for 1 inputs"]

    # Wrong sizes.
    yield (
        lambda: all_gather_single(ones(3), x),
        ValueError,
        ["output has 3", f"{size} (ranks)", "input's 4"],
    )
    yield lambda: reduce_scatter_single(x, ones(7)), ValueError, ["input has 7", "output's 4"]
    unequal = [ones(5 if r == rank else 4) for r in range(size)]
    own = f"{{}} {rank}, which is this rank's own, has 5 elements, and the {{}} has 4"
    yield lambda: dist.all_gather(unequal, x), ValueError, [own.format("output", "input")]
    yield lambda: dist.reduce_scatter(x, unequal), ValueError, [own.format("input", "output")]
    root = options(c10d.GatherOptions, rootRank=rank)
    yield lambda: group.gather([unequal], [x], root), ValueError, [f"output {rank} has 5 elements"]
    root = options(c10d.ScatterOptions, rootRank=rank)
    yield lambda: group.scatter([x], [unequal], root), ValueError, [f"input {rank} has 5 elements"]

    # Wrong splits.
    def split(rows, splits, output_splits=None):
        return lambda: dist.all_to_all_single(ones(rows, 2), ones(rows, 2), output_splits or splits, splits)

    lot = [100] + [0] * (size - 1)
    yield split(4, [1] * size), ValueError, ["input split sizes", f"are {size} rows, and it has 4"]
    yield split(4, lot), ValueError, ["input split sizes [100, 0", "more than the 4 rows"]
    yield split(4, [2] * (size + 1)), ValueError, [f"{size + 1} input split sizes", f"{size} ranks"]
    yield split(4, [-1] + [5] * (size - 1)), ValueError, ["split size is -1"]
    yield split(size * 2 + 1, []), ValueError, [f"{size * 2 + 1} rows", f"equally among {size} ranks"]
    mine = [4 if r == rank else 0 for r in range(size)]
    theirs = [4 if r == (rank + 1) % size else 0 for r in range(size)]
    yield split(4, mine, theirs), ValueError, ["sends itself 8 elements and expects 0"]
    scalar = torch.tensor(1.0, device=device)
    yield lambda: dist.all_to_all_single(scalar, scalar.clone()), ValueError, ["no dimension to split"]
    pieces = [ones(3 if r == rank else 4) for r in range(size)]
    yield lambda: dist.all_to_all(many(), pieces), ValueError, ["sends itself 3 elements and expects 4"]

    # Devices and dtypes.
    both = ["tensors on ", here, other]
    yield lambda: dist.all_gather(many(device=other), x), ValueError, ["all_gather", *both]
    yield lambda: all_gather_single(ones(4 * size, device=other), x), ValueError, both
    yield lambda: dist.reduce_scatter(x, many(device=other)), ValueError, both
    yield lambda: dist.all_to_all_single(x, ones(4, device=other)), ValueError, both
    yield lambda: group.allreduce_coalesced([x, ones(4, device=other)], coalesced), ValueError, both
    if device == "vdev":
        card = f"vdev:{rank + size}"
        yield lambda: dist.all_gather(many(device=card), x), ValueError, [here, card]
        yield lambda: dist.all_reduce(x, premul(ones(1, device=card))), ValueError, ["factor", card, here]
    doubles = many(dtype=torch.float64)
    yield lambda: dist.reduce_scatter(x, doubles), (TypeError, ValueError), ["float32", "float64"]
    yield lambda: group.allgather([doubles], [x]), TypeError, ["all_gather", "Float", "Double"]
    yield lambda: group.alltoall_base(x, ones(4).int(), [], []), TypeError, ["Float", "Int"]
    yield lambda: dist.all_reduce(x, dist.ReduceOp.BAND), TypeError, ["all_reduce", "BAND", "float32"]
    yield lambda: dist.all_reduce(x.int(), premul(0.5)), TypeError, ["PREMUL_SUM", "int32", "SUM"]
    yield lambda: dist.reduce(x.bool(), 0, dist.ReduceOp.AVG), TypeError, ["AVG", "bool", "MAX"]
    fnuz = x.to(torch.float8_e4m3fnuz)
    yield lambda: dist.all_reduce(fnuz), TypeError, ["SUM", "float8_e4m3fnuz", "convert"]
    maximum = options(c10d.AllreduceOptions, reduceOp=dist.ReduceOp.MAX)
    yield lambda: group.allreduce([x.cfloat()], maximum), TypeError, ["MAX", "complex64", "no order"]
    half = torch.zeros(2, dtype=torch.complex32)
    yield lambda: group.broadcast([half]), NotImplementedError, ["broadcast", "ComplexHalf", "uint8"]
    if device == "cpu":
        row = torch.eye(3).to_sparse_csr()
        yield lambda: group.allreduce([row]), (NotImplementedError, RuntimeError), ["Csr"]
        coo = torch.eye(3).to_sparse()
        yield lambda: dist.all_reduce(coo, dist.ReduceOp.MAX), NotImplementedError, ["sparse", "MAX", "SUM"]
        unsigned = torch.sparse_coo_tensor([[0]], torch.ones(1).to(torch.uint16), (3,))
        yield lambda: dist.all_reduce(unsigned), NotImplementedError, ["sparse", "UInt16"]

    # Overlaps.
    expanded = ones(1).expand(2 * size)
    itself = "overlaps itself"
    yield lambda: dist.all_reduce(expanded), ValueError, ["all_reduce", itself, "expand()", "clone()"]
    yield lambda: dist.all_reduce(ones(9).as_strided((3, 4), (2, 1))), ValueError, [itself]
    yield (
        lambda: dist.all_gather([expanded] * size, ones(2 * size)),
        ValueError,
        ["all_gather: output 0", itself],
    )
    yield lambda: all_gather_single(ones(4, 1).expand(4, size), x), ValueError, ["the output", itself]
    yield lambda: dist.reduce_scatter(expanded, many(size, 2 * size)), ValueError, ["the output", itself]
    yield lambda: dist.all_to_all_single(expanded, ones(2 * size)), ValueError, ["all_to_all_single", itself]
    yield lambda: dist.all_gather([x] * size, ones(4)), ValueError, ["outputs 0 and ", "overlap"]
    yield lambda: dist.all_to_all([x] * size, many()), ValueError, ["outputs 0 and ", "overlap"]
    parts = [buffer[2 * r : 2 * r + 4] for r in range(size)]
    yield lambda: group.allreduce_coalesced(parts, coalesced), ValueError, ["tensors 0 and 1 overlap"]
    whole, wrong = buffer[: 4 * size], (rank + 1) % size
    not_own = buffer[4 * wrong : 4 * wrong + 4]
    mine_only = [f"chunk {rank}", "this rank's own"]
    yield (
        lambda: all_gather_single(whole, not_own),
        ValueError,
        ["input overlaps the output", *mine_only],
    )
    yield lambda: reduce_scatter_single(not_own, whole), ValueError, ["output overlaps", *mine_only]
    shifted = buffer[4 * rank + 1 : 4 * rank + 5]
    yield lambda: all_gather_single(whole, shifted), ValueError, ["overlaps", *mine_only]
    listed = list(whole.chunk(size))
    yield lambda: dist.all_gather(listed, not_own), ValueError, [f"the input overlaps output {wrong}"]
    yield lambda: dist.reduce_scatter(not_own, listed), ValueError, [f"the output overlaps input {wrong}"]
    yield lambda: dist.all_to_all_single(whole, whole), ValueError, ["the output overlaps the input"]
    displaced, own = many(), f"input {rank} overlaps output {wrong}; it may only be all of output {rank}"
    displaced[rank] = not_own
    yield lambda: dist.all_to_all(listed, displaced), ValueError, [own]
    at_odds = [buffer[1:5], *many()[1:]]
    yield lambda: dist.all_to_all([buffer[:4], *many()[1:]], at_odds), ValueError, ["all of output 0"]
    for square in (ones(size, size), ones(600 * size, 600 * size)):
        call = functools.partial(dist.all_to_all_single, square, square.t())
        yield call, ValueError, ["the output overlaps the input"]
    pair = [ones(size * 2), whole], [buffer[:2], ones(4)]
    into = group.allgather_into_tensor_coalesced
    yield lambda: into(*pair), ValueError, ["input 0 overlaps output 1"]

    # Factors.
    yield lambda: dist.all_reduce(x, premul(torch.tensor(1j))), TypeError, ["factor", "complex"]


def what_it_raises(call, *arguments):
    try:
        call(*arguments)
        torch.accelerator.synchronize()
    except Exception as error:
        return error
    return AssertionError("nothing was raised")


@pytest.mark.ranks(2, 3)
@everywhere
def test_wrong_calls(ranks, device):
    problems = []
    for number, (call, kind, words) in enumerate(wrong_calls(ranks.rank, ranks.size, device)):
        error = what_it_raises(call)
        if not isinstance(error, kind) or not all(word in str(error) for word in words):
            problems.append(f"case {number}: {words} expected of {error!r}")
    assert not problems, "\n".join(problems)
    # None of these has touched the group.
    x = torch.ones(4, device=device)
    dist.all_reduce(x)
    assert x.eq(ranks.size).all().item()


def disagreements(rank, size, device):
    """Every case: what each rank calls in a group, and words of the error that both raise."""

    def ones(*shape, **options):
        return torch.ones(shape, device=device, **options)

    first = rank == 0
    n = 4 if first else 6
    many = [ones(n) for _ in range(size)]
    yield lambda g: dist.all_reduce(ones(n), group=g), ["all_reduce(float32, 4 elements", "6 elements"]
    yield (
        lambda g: dist.all_reduce(ones(4).to(torch.float64 if first else torch.float32), group=g),
        [
            "float64",
            "float32",
        ],
    )
    op = dist.ReduceOp.SUM if first else dist.ReduceOp.MAX
    yield lambda g: dist.all_reduce(ones(4), op, group=g), ["SUM", "MAX"]
    yield lambda g: dist.reduce(ones(n), 0, group=g), ["reduce(", "4 elements", "6 elements"]
    yield lambda g: dist.reduce(ones(4), rank, group=g), ["root 0", "root 1"]
    yield lambda g: dist.broadcast(ones(4), rank, group=g), ["broadcast", "root 0", "root 1"]
    yield (
        lambda g: dist.gather(ones(n), many if first else None, group=g),
        ["gather(", "4 elements", "6 elements"],
    )
    yield lambda g: dist.scatter(ones(n), many if first else None, group=g), ["scatter(", "4 elem", "6 elem"]
    yield lambda g: dist.reduce_scatter(ones(n), many, group=g), ["reduce_scatter(", "4 elem", "6 elem"]
    yield lambda g: reduce_scatter_single(ones(n), ones(n * size), group=g), ["4 elem", "6 elem"]
    yield lambda g: dist.all_gather(many, ones(n), group=g), ["all_gather(", "4 elements", "6 elements"]
    yield lambda g: dist.all_to_all_single(ones(n), ones(n), group=g), ["all_to_all(", "2 elem", "3 elem"]
    # As many elements in all, in other chunks.
    uneven = [ones(1), ones(2)] if first else [ones(2), ones(1)]
    yield (
        lambda g: dist.all_gather(uneven, ones(1), group=g),
        ["all_gather(", "3 elements in uneven chunks #"],
    )
    yield (
        lambda g: dist.reduce_scatter(ones(1), uneven, group=g),
        ["reduce_scatter(", "3 elements in uneven chunks #"],
    )
    # Rank 0 sends one row more to rank 1 than that expects.
    rows = [[1, 2], [1, 1]][rank]
    expected = [[1, 1], [1, 1]][rank]
    yield (
        lambda g: dist.all_to_all_single(ones(2), ones(sum(rows)), expected, rows, group=g),
        [
            "rank 0 sends 2 elements to rank 1, which expects 1",
            "input splits of each rank must be the output splits",
        ],
    )
    splits = ([1, 1], [1, 1]) if first else (None, None)
    yield lambda g: dist.all_to_all_single(ones(2), ones(2), *splits, group=g), ["with splits", "1 element"]
    yield (
        lambda g: (
            dist.all_reduce(ones(4), group=g) if first else all_gather_single(ones(8), ones(4), group=g)
        ),
        ["all_reduce(", "all_gather("],
    )
    if device == "cpu":
        eye = torch.eye(n).to_sparse()
        yield lambda g: dist.all_reduce(eye, group=g), ["sparse", "shape [4, 4]", "rank 1 [6, 6]"]
        stacked = torch.ones(2, 2, 2).to_sparse(2 if first else 3)
        yield lambda g: dist.all_reduce(stacked, group=g), ["sparse and dense dimensions [2, 1]", "[3, 0]"]


def run_disagreements(rank, size, device):
    problems = []
    for number, (call, words) in enumerate(disagreements(rank, size, device)):
        group = dist.new_group()
        error = what_it_raises(call, group)
        if not isinstance(error, dist.DistBackendError) or not all(word in str(error) for word in words):
            problems.append(f"case {number}: {words} expected of {error!r}")
        # The group is spent, and says why.
        again = what_it_raises(lambda g: dist.all_reduce(torch.ones(1, device=device), group=g), group)
        if str(again) != str(error):
            problems.append(f"case {number}: then {again!r}")
        dist.destroy_process_group(group)
        # The program has dealt with the failure, so that nothing raises it any more.
        torch.accelerator.synchronize()
    assert not problems, "\n".join(problems)


@pytest.mark.ranks(2)
@everywhere
def test_ranks_that_disagree(ranks, device):
    run_disagreements(ranks.rank, ranks.size, device)


@pytest.mark.ranks(2, hosts=["here", "there"])
@everywhere
def test_ranks_on_two_hosts_that_disagree(ranks, device):
    run_disagreements(ranks.rank, ranks.size, device)
