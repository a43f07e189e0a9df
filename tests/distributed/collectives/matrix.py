"""Every collective x dtype x reduction x memory layout, in one group, against a serial reference.

Compared exactly: inputs of reductions in floating point are such small numbers that every sum, mean and
product of five ranks has an exact float8_e5m2; integers and what is only moved are random bits.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator

import numpy
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

LAYOUTS = ["contiguous", "transposed"]

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]
COMPLEX = ["complex64", "complex128"]
MOVED = ["float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
DTYPES = ["bool", *INTEGERS, *FLOATS, *MOVED, *COMPLEX]

PREMUL = ["PREMUL_SUM", "PREMUL_SUM (tensor)"]
ARITHMETIC = ["SUM", "AVG", "PRODUCT", "MIN", "MAX"]
BITWISE = ["BAND", "BOR", "BXOR"]
OPS = [*ARITHMETIC, *BITWISE, *PREMUL]
MEANINGS: dict[str, list[str]] = {
    "bool": ["SUM", "PRODUCT", "MIN", "MAX", *BITWISE],
    **{dtype: ARITHMETIC + BITWISE for dtype in INTEGERS},
    **{dtype: ARITHMETIC + PREMUL for dtype in FLOATS},
    **{dtype: [] for dtype in MOVED},
    **{dtype: ["SUM", "AVG", "PRODUCT", *PREMUL] for dtype in COMPLEX},
}
# torch's own sparse kernels have no others.
SPARSE = [d for d in DTYPES if d not in MOVED and not d.startswith("float8") and d not in INTEGERS[5:]]

Shape = tuple[int, ...]


def factor_of(rank: int) -> float:
    """By which PREMUL_SUM multiplies a rank's elements."""
    return 2.0 if rank % 2 == 0 else -1.0


def part(rank: int, size: int, dtype: str, op: str | None, shape: Shape, seed: int = 0) -> torch.Tensor:
    """A rank's tensor; without `op` only to be moved: any bits."""
    if 0 in shape:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    kind = 0 if op is None else 1 + OPS.index(op)
    random = numpy.random.default_rng([rank, size, DTYPES.index(dtype), kind, seed, *shape])
    if dtype == "bool":
        return torch.from_numpy(random.integers(0, 2, shape).astype(bool))
    if op is None or dtype in INTEGERS:
        width = getattr(torch, dtype).itemsize
        bits = random.integers(0, 256, (*shape, width), dtype=numpy.uint8)
        return torch.from_numpy(bits).view(getattr(torch, dtype)).reshape(shape)
    if op == "PRODUCT":
        values = [1, -1, 1j, -1j, 1 + 1j] if dtype in COMPLEX else [1, -1, 2, -2, 0.5]
    elif op in ("MIN", "MAX"):
        values = range(-8, 9)
    else:
        values = [-1, 0, 1, 1j, -1j, 1 - 1j] if dtype in COMPLEX else [-1, 0, 1]
    wide = torch.complex128 if dtype in COMPLEX else torch.float64
    tensor = torch.tensor(random.choice(list(values), shape), dtype=wide)
    return (tensor * size if op == "AVG" else tensor).to(getattr(torch, dtype))


def combined(parts: list[torch.Tensor], dtype: str, op: str) -> torch.Tensor:
    """The reduction of all ranks' tensors, one rank after the other."""
    size = len(parts)
    if dtype in INTEGERS or dtype == "bool":
        return torch.from_numpy(combined_integers([p.numpy() for p in parts], dtype, op, size))
    wide = torch.stack([p.to(torch.complex128 if dtype in COMPLEX else torch.float64) for p in parts])
    if op == "SUM":
        result = wide.sum(0)
    elif op == "AVG":
        result = wide.sum(0) / size
    elif op == "PRODUCT":
        result = wide.prod(0)
    elif op in PREMUL:
        result = sum(factor_of(rank) * wide[rank] for rank in range(size))
    else:
        result = wide.amin(0) if op == "MIN" else wide.amax(0)
    return result.to(parts[0].dtype)


def combined_integers(parts: list[numpy.ndarray], dtype: str, op: str, size: int) -> numpy.ndarray:
    """Sums and products wrap; those of bool are "or" and "and"; AVG truncates the sum."""
    functions = {"PRODUCT": "multiply", "MIN": "minimum", "MAX": "maximum"}
    functions |= {"BAND": "bitwise_and", "BOR": "bitwise_or", "BXOR": "bitwise_xor"}
    function = getattr(numpy, functions.get(op, "add"))
    result = functools.reduce(function, parts).astype(parts[0].dtype)
    if op != "AVG":
        return result
    # In Python's numbers, whose division is exact.
    means = [abs(int(x)) // size * (-1 if x < 0 else 1) for x in result.flat]
    return numpy.array(means, dtype=result.dtype).reshape(result.shape)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Flat bytes: torch has no comparison and no cat for some dtypes."""
    if tensor.numel() == 0:
        return torch.empty(0, dtype=torch.uint8)
    return tensor.contiguous().view(-1).view(torch.uint8)


def same(actual: torch.Tensor, expected: torch.Tensor, moved: bool) -> bool:
    """The same numbers, or, when only moved, the same bits."""
    actual = actual.cpu()
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    if not moved and expected.is_floating_point():
        return torch.equal(actual.double(), expected.double())  # -0 is 0
    return torch.equal(bits(actual), bits(expected)) or (
        expected.is_complex() and not moved and torch.equal(actual, expected)
    )


@dataclasses.dataclass
class Cell:
    """What one cell of the matrix is done with: the group and the kind of tensor."""

    pg: dist.ProcessGroup
    rank: int
    size: int
    device: str
    layout: str
    dtype: str
    op: str | None  # None: a collective that reduces nothing
    asynchronous: bool
    wrong: list[str]

    def part(self, rank: int, *shape: int, seed: int = 0) -> torch.Tensor:
        return cached_part(rank, self.size, self.dtype, self.op, shape, seed)

    def all_parts(self, *shape: int, seed: int = 0) -> list[torch.Tensor]:
        return [self.part(rank, *shape, seed=seed) for rank in range(self.size)]

    def reduced(self, *shape: int, seed: int = 0) -> torch.Tensor:
        return cached_combined(self.size, self.dtype, self.op, shape, seed)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device, in the layout; a copy."""
        if self.layout == "transposed":
            return tensor.t().contiguous().t().to(self.device, copy=True)
        return tensor.to(self.device, copy=True)

    def own(self, *shape: int, seed: int = 0) -> torch.Tensor:
        return self.put(self.part(self.rank, *shape, seed=seed))

    def out(self, *shape: int) -> torch.Tensor:
        """Memory for a result, of zeros."""
        return self.put(torch.zeros(shape, dtype=torch.uint8).to(getattr(torch, self.dtype)))

    def options(self, kind: Callable, **values: int) -> object:
        options = kind()
        options.asyncOp = self.asynchronous
        for name, value in values.items():
            setattr(options, name, value)
        if self.op is not None:
            options.reduceOp = self.reduction()
        return options

    def reduction(self) -> dist.ReduceOp:
        if self.op == "PREMUL_SUM":
            return dist._make_nccl_premul_sum(factor_of(self.rank))
        if self.op == "PREMUL_SUM (tensor)":
            dtype = getattr(torch, self.dtype if self.dtype in FLOATS else "float32")
            factor = torch.tensor([factor_of(self.rank)]).to(dtype).to(self.device)
            return dist._make_nccl_premul_sum(factor)
        return getattr(dist.ReduceOp, self.op)

    def run(self, method: str, *args: object) -> None:
        work = getattr(self.pg, method)(*args)
        if work is not None:
            work.wait()

    def expect(self, actual: torch.Tensor, expected: torch.Tensor, what: str = "") -> None:
        if not same(actual, expected, self.op is None):
            self.wrong.append(f"{what}: {actual.cpu()} instead of {expected}")


@functools.cache
def cached_part(rank: int, size: int, dtype: str, op: str | None, shape: Shape, seed: int) -> torch.Tensor:
    return part(rank, size, dtype, op, shape, seed)


@functools.cache
def cached_combined(size: int, dtype: str, op: str, shape: Shape, seed: int) -> torch.Tensor:
    parts = [cached_part(rank, size, dtype, op, shape, seed) for rank in range(size)]
    return combined(parts, dtype, op)


def all_reduce(c: Cell) -> None:
    tensor = c.own(3, 5)
    c.run("allreduce", [tensor], c.options(c10d.AllreduceOptions))
    c.expect(tensor, c.reduced(3, 5))


def all_reduce_coalesced(c: Cell) -> None:
    tensors = [c.own(3, 5), c.own(2, 2, seed=1)]
    c.run("allreduce_coalesced", tensors, c.options(c10d.AllreduceCoalescedOptions))
    c.expect(tensors[0], c.reduced(3, 5), "first")
    c.expect(tensors[1], c.reduced(2, 2, seed=1), "second")


def all_reduce_sparse(c: Cell) -> None:
    """Each rank has a row of its own, and one that all have."""
    rows = torch.tensor([[c.rank, c.size]])
    values = c.part(c.rank, 2, 5)
    values = values.t().contiguous().t() if c.layout == "transposed" else values
    tensor = torch.sparse_coo_tensor(rows, values, (c.size + 1, 5), check_invariants=True)
    c.run("allreduce", [tensor], c.options(c10d.AllreduceOptions))
    dense = []
    for rank in range(c.size):
        dense.append(torch.zeros(c.size + 1, 5, dtype=values.dtype))
        dense[rank][[rank, c.size]] = c.part(rank, 2, 5)
    c.expect(tensor.to_dense(), combined(dense, c.dtype, c.op))


def reduce(c: Cell) -> None:
    root = c.size - 1
    tensor = c.own(3, 5)
    c.run("reduce", [tensor], c.options(c10d.ReduceOptions, rootRank=root))
    c.expect(tensor, c.reduced(3, 5) if c.rank == root else c.part(c.rank, 3, 5))


def reduce_scatter(c: Cell) -> None:
    inputs = [c.own(3, 5, seed=to) for to in range(c.size)]
    output = c.out(3, 5)
    c.run("reduce_scatter", [output], [inputs], c.options(c10d.ReduceScatterOptions))
    c.expect(output, c.reduced(3, 5, seed=c.rank))


def reduce_scatter_uneven(c: Cell) -> None:
    inputs = [c.own(2 * to, 5, seed=to) for to in range(c.size)]
    output = c.out(2 * c.rank, 5)
    c.run("reduce_scatter", [output], [inputs], c.options(c10d.ReduceScatterOptions))
    c.expect(output, c.reduced(2 * c.rank, 5, seed=c.rank))


def reduce_scatter_tensor(c: Cell) -> None:
    output = c.out(3, 5)
    c.run("_reduce_scatter_base", output, c.own(3 * c.size, 5), c.options(c10d.ReduceScatterOptions))
    c.expect(output, c.reduced(3 * c.size, 5)[3 * c.rank : 3 * c.rank + 3])


def reduce_scatter_tensor_coalesced(c: Cell) -> None:
    outputs = [c.out(3, 5), c.out(1, 2)]
    inputs = [c.own(3 * c.size, 5), c.own(c.size, 2)]
    c.run("reduce_scatter_tensor_coalesced", outputs, inputs, c.options(c10d.ReduceScatterOptions))
    c.expect(outputs[0], c.reduced(3 * c.size, 5)[3 * c.rank : 3 * c.rank + 3], "first")
    c.expect(outputs[1], c.reduced(c.size, 2)[c.rank : c.rank + 1], "second")


def broadcast(c: Cell) -> None:
    root = c.size // 2
    tensor = c.own(3, 5)
    c.run("broadcast", [tensor], c.options(c10d.BroadcastOptions, rootRank=root))
    c.expect(tensor, c.part(root, 3, 5))


def all_gather(c: Cell) -> None:
    outputs = [c.out(3, 5) for _ in range(c.size)]
    c.run("allgather", [outputs], [c.own(3, 5)], c.options(c10d.AllgatherOptions))
    for rank in range(c.size):
        c.expect(outputs[rank], c.part(rank, 3, 5), f"of rank {rank}")


def all_gather_uneven(c: Cell) -> None:
    outputs = [c.out(2 * rank, 5) for rank in range(c.size)]
    c.run("allgather", [outputs], [c.own(2 * c.rank, 5)], c.options(c10d.AllgatherOptions))
    for rank in range(c.size):
        c.expect(outputs[rank], c.part(rank, 2 * rank, 5), f"of rank {rank}")


def all_gather_into_tensor(c: Cell) -> None:
    output = c.out(3 * c.size, 5)
    c.run("_allgather_base", output, c.own(3, 5), c.options(c10d.AllgatherOptions))
    c.expect(output, torch.cat([bits(p) for p in c.all_parts(3, 5)]).view(output.dtype).view(-1, 5))


def all_gather_into_tensor_coalesced(c: Cell) -> None:
    outputs = [c.out(3 * c.size, 5), c.out(c.size, 2)]
    inputs = [c.own(3, 5), c.own(1, 2)]
    c.run("allgather_into_tensor_coalesced", outputs, inputs, c.options(c10d.AllgatherOptions))
    for i, shape in enumerate([(3, 5), (1, 2)]):
        expected = torch.cat([bits(p) for p in c.all_parts(*shape)]).view(outputs[i].dtype)
        c.expect(outputs[i], expected.view(-1, shape[1]), f"tensor {i}")


def all_gather_coalesced(c: Cell) -> None:
    outputs = [[c.out(3, 5), c.out(rank, 2)] for rank in range(c.size)]
    inputs = [c.own(3, 5), c.own(c.rank, 2)]
    c.run("allgather_coalesced", outputs, inputs, c.options(c10d.AllgatherOptions))
    for rank in range(c.size):
        c.expect(outputs[rank][0], c.part(rank, 3, 5), f"first of rank {rank}")
        c.expect(outputs[rank][1], c.part(rank, rank, 2), f"second of rank {rank}")


def gather(c: Cell) -> None:
    root = c.size - 1
    outputs = [c.out(3, 5) for _ in range(c.size)] if c.rank == root else []
    lists = [outputs] if outputs else []
    c.run("gather", lists, [c.own(3, 5)], c.options(c10d.GatherOptions, rootRank=root))
    for rank, output in enumerate(outputs):
        c.expect(output, c.part(rank, 3, 5), f"of rank {rank}")


def scatter(c: Cell) -> None:
    root = c.size // 2
    lists = [[c.own(3, 5, seed=to) for to in range(c.size)]] if c.rank == root else []
    output = c.out(3, 5)
    c.run("scatter", [output], lists, c.options(c10d.ScatterOptions, rootRank=root))
    c.expect(output, c.part(root, 3, 5, seed=c.rank))


def all_to_all(c: Cell) -> None:
    """From r to s go (r + s) % 3 rows: none between some."""
    rows = [(c.rank + other) % 3 for other in range(c.size)]
    inputs = [c.own(rows[to], 5, seed=to) for to in range(c.size)]
    outputs = [c.out(rows[source], 5) for source in range(c.size)]
    c.run("alltoall", outputs, inputs, c.options(c10d.AllToAllOptions))
    for source in range(c.size):
        c.expect(outputs[source], c.part(source, rows[source], 5, seed=c.rank), f"of rank {source}")


def all_to_all_single(c: Cell) -> None:
    output = c.out(3 * c.size, 5)
    c.run("alltoall_base", output, c.own(3 * c.size, 5), [], [], c.options(c10d.AllToAllOptions))
    for source in range(c.size):
        mine = slice(3 * c.rank, 3 * c.rank + 3)
        c.expect(
            output[3 * source : 3 * source + 3], c.part(source, 3 * c.size, 5)[mine], f"of rank {source}"
        )


def all_to_all_single_with_splits(c: Cell) -> None:
    rows = [(c.rank + other) % 3 for other in range(c.size)]
    output = c.out(sum(rows), 5)
    tensor = c.own(sum(rows), 5)
    c.run("alltoall_base", output, tensor, rows, rows, c.options(c10d.AllToAllOptions))
    pieces = output.split(rows)
    for source in range(c.size):
        theirs = [(source + other) % 3 for other in range(c.size)]
        expected = c.part(source, sum(theirs), 5).split(theirs)[c.rank]
        c.expect(pieces[source], expected, f"of rank {source}")


REDUCING = [
    all_reduce,
    all_reduce_coalesced,
    all_reduce_sparse,
    reduce,
    reduce_scatter,
    reduce_scatter_uneven,
    reduce_scatter_tensor,
    reduce_scatter_tensor_coalesced,
]
MOVING = [
    broadcast,
    all_gather,
    all_gather_uneven,
    all_gather_into_tensor,
    all_gather_into_tensor_coalesced,
    all_gather_coalesced,
    gather,
    scatter,
    all_to_all,
    all_to_all_single,
    all_to_all_single_with_splits,
]


# What each of them is to the algorithms, where its name does not begin with it.
UNDERLYING = {all_reduce_sparse: "all_gather"}


def underlying(collective: Callable[[Cell], None]) -> str:
    """The collective of vccl's algorithms: "all_reduce" for all_reduce_coalesced."""
    names = ["all_reduce", "reduce_scatter", "reduce", "broadcast", "all_gather", "gather", "scatter"]
    beginnings = (name for name in [*names, "all_to_all"] if collective.__name__.startswith(name))
    return UNDERLYING.get(collective) or next(beginnings)


def cells(device: str, of: Collection[str]) -> Iterator[tuple[Callable[[Cell], None], str, str | None]]:
    """What there is to do on a device: collective, dtype, reduction. `of`: the underlying collectives."""
    for collective in REDUCING + MOVING:
        if underlying(collective) not in of:
            continue
        if collective in MOVING:
            yield from ((collective, dtype, None) for dtype in DTYPES)
        elif collective is not all_reduce_sparse:
            yield from ((collective, dtype, op) for dtype in DTYPES for op in MEANINGS[dtype])
        elif device == "cpu":
            yield from ((collective, d, op) for d in SPARSE for op in ("SUM", "AVG") if op in MEANINGS[d])


def meaningless() -> Iterator[tuple[Callable[[Cell], None], str, str]]:
    for collective in REDUCING:
        if collective is not all_reduce_sparse:
            yield from ((collective, d, op) for d in DTYPES for op in OPS if op not in MEANINGS[d])


@dataclasses.dataclass
class Report:
    """What one rank saw: cells that were right (collective, dtype, reduction, layout), pairs that every
    collective refused (dtype, reduction), and what was wrong."""

    right: set[tuple[str, str, str | None, str]] = dataclasses.field(default_factory=set)
    refused: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    wrong: list[str] = dataclasses.field(default_factory=list)


def run_matrix(rank: int, size: int, device: str, of: Collection[str], layouts: list[str]) -> Report:
    """Every cell of the device, of these underlying collectives and layouts."""
    pg = dist.group.WORLD
    report = Report()
    for number, (collective, dtype, op) in enumerate(cells(device, of)):
        for layout in layouts:
            # Both ways of calling, in turn.
            cell = Cell(pg, rank, size, device, layout, dtype, op, number % 2 == 0, [])
            collective(cell)
            label = (collective.__name__, dtype, op, layout)
            if not cell.wrong:
                report.right.add(label)
            report.wrong += [f"{label}: {text}" for text in cell.wrong]
    accepted = set()
    for collective, dtype, op in meaningless():
        message = refusal(Cell(pg, rank, size, device, "contiguous", dtype, op, True, []), collective)
        if dtype in message and op.split()[0] in message:
            report.refused.add((dtype, op))
        else:
            accepted.add((dtype, op))
            report.wrong.append(f"{collective.__name__} of {dtype} with {op}: {message}")
    report.refused -= accepted
    pg.barrier().wait()
    return report


def refusal(cell: Cell, collective: Callable[[Cell], None]) -> str:
    try:
        collective(cell)
    except TypeError as error:
        return str(error)
    return "was not refused"
