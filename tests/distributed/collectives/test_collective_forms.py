"""What the matrix leaves out: long buffers, odd tensors, calls in place, and what the handles give back."""

import json

import pytest
import torch
import torch.distributed as dist
from common import everywhere
from newer_names import all_gather_single, reduce_scatter_single
from references import assert_close, part, reduced

LONG = 100_003  # elements: over one block of the transport, and no multiple of anything


def long_reductions(rank, size, device):
    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        expected = reduced(size, LONG, dtype, "SUM")
        tensor = part(rank, LONG, dtype).to(device)
        dist.reduce(tensor, size - 1)
        assert_close(tensor, expected if rank == size - 1 else part(rank, LONG, dtype), f"reduce {dtype}")

        whole = part(rank, size * LONG, dtype).to(device)
        expected = reduced(size, size * LONG, dtype, "SUM").chunk(size)[rank]
        output = torch.empty(LONG, dtype=dtype, device=device)
        reduce_scatter_single(output, whole)
        assert_close(output, expected, f"reduce_scatter_single {dtype}")
        for inputs in (list(whole.chunk(size)), [piece.clone() for piece in whole.chunk(size)]):
            output.zero_()
            dist.reduce_scatter(output, inputs)
            assert_close(output, expected, f"reduce_scatter {dtype}")

        lengths = [LONG // 7 * other + other % 2 for other in range(size)]
        pieces = part(rank, sum(lengths), dtype).to(device).split(lengths)
        output = torch.empty(lengths[rank], dtype=dtype, device=device)
        dist.reduce_scatter(output, list(pieces))
        assert_close(
            output, reduced(size, sum(lengths), dtype, "SUM").split(lengths)[rank], f"uneven {dtype}"
        )


def long_moves(rank, size, device):
    for dtype in (torch.float32, torch.uint8):
        for root in range(size):
            outputs = torch.empty(size, LONG, dtype=dtype, device=device)
            dist.gather(part(rank, LONG, dtype).to(device), list(outputs) if rank == root else None, dst=root)
            if rank == root:
                assert_close(outputs, torch.stack([part(r, LONG, dtype) for r in range(size)]), "gather")

            output = torch.empty(LONG, dtype=dtype, device=device)
            inputs = [part(to, LONG, dtype, seed=root).to(device) for to in range(size)]
            dist.scatter(output, inputs if rank == root else None, src=root)
            assert_close(output, part(rank, LONG, dtype, seed=root), "scatter")

        lengths = [(LONG + other) // (2 if other % 2 else 1) for other in range(size)]
        outputs = [torch.empty(length, dtype=dtype, device=device) for length in lengths]
        dist.all_gather(outputs, part(rank, lengths[rank], dtype).to(device))
        for other in range(size):
            assert_close(outputs[other], part(other, lengths[other], dtype), "all_gather of uneven chunks")

        # From r to s go (r + 2 s) % 4 times 10,001 elements.
        def length(source, to):
            return (source + 2 * to) % 4 * 10_001

        sent, taken = [length(rank, r) for r in range(size)], [length(r, rank) for r in range(size)]
        outputs = [torch.empty(n, dtype=dtype, device=device) for n in taken]
        dist.all_to_all(outputs, [part(rank, n, dtype, seed=to).to(device) for to, n in enumerate(sent)])
        for source in range(size):
            assert_close(outputs[source], part(source, taken[source], dtype, seed=rank), "all_to_all")

        rows = torch.empty(sum(taken), 2, dtype=dtype, device=device)
        dist.all_to_all_single(rows, part(rank, (sum(sent), 2), dtype).to(device), taken, sent)
        for source, piece in enumerate(rows.split(taken)):
            theirs = [length(source, to) for to in range(size)]
            expected = part(source, (sum(theirs), 2), dtype).split(theirs)[rank]
            assert_close(piece, expected, "all_to_all_single with splits")


@pytest.mark.ranks(2, 3)
@everywhere
def test_long_buffers(ranks, device):
    long_reductions(ranks.rank, ranks.size, device)
    long_moves(ranks.rank, ranks.size, device)


@pytest.mark.ranks(3, hosts=["here", "there", "there"])
@everywhere
def test_long_buffers_between_hosts(ranks, device):
    long_reductions(ranks.rank, ranks.size, device)
    long_moves(ranks.rank, ranks.size, device)


@pytest.mark.ranks(2, 3)
@everywhere
def test_all_to_all_in_place(ranks, device):
    """All outputs, or some, are the inputs with their numbers. r sends s as much as s sends r."""
    rank, size = ranks.rank, ranks.size
    for shared in (range(size), [0], [size - 1]):
        for longest in (7, 10_001):
            lengths = [longest * (1 + (rank + other) % 3) for other in range(size)]
            inputs = [part(rank, n, torch.float32, seed=to).to(device) for to, n in enumerate(lengths)]
            outputs = [x if i in shared else torch.empty_like(x) for i, x in enumerate(inputs)]
            dist.all_to_all(outputs, inputs)
            for source, n in enumerate(lengths):
                assert_close(outputs[source], part(source, n, torch.float32, seed=rank), f"from {source}")
    # The list lies in one piece of memory.
    whole = torch.stack([part(rank, 5, torch.float32, seed=to) for to in range(size)]).to(device)
    dist.all_to_all(list(whole), list(whole))
    assert_close(whole, torch.stack([part(r, 5, torch.float32, seed=rank) for r in range(size)]), "one piece")


@pytest.mark.ranks(3)
@everywhere
def test_in_place(ranks, device):
    rank, size = ranks.rank, ranks.size

    def rows(seed=0):
        return torch.stack([part(r, 7, torch.float32, seed) for r in range(size)])

    buffer = torch.zeros(size, 7, device=device)
    buffer[rank].copy_(part(rank, 7, torch.float32))
    all_gather_single(buffer.view(-1), buffer[rank])
    assert_close(buffer, rows(), "all_gather_single")

    # A part of an output that is not contiguous.
    wide = torch.zeros(7, size, device=device).t()
    wide[rank].copy_(part(rank, 7, torch.float32))
    all_gather_single(wide, wide[rank : rank + 1])
    assert_close(wide, rows(), "all_gather_single, transposed")

    separate = [torch.zeros(7, device=device) for _ in range(size)]
    separate[rank].copy_(part(rank, 7, torch.float32))
    dist.all_gather(separate, separate[rank])
    assert_close(torch.stack(separate), rows(), "all_gather")

    gathered = torch.zeros(size, 7, device=device)
    gathered[rank].copy_(part(rank, 7, torch.float32))
    dist.gather(gathered[rank], list(gathered) if rank == 1 else None, dst=1)
    if rank == 1:
        assert_close(gathered, rows(), "gather")

    spread = rows(5).to(device)
    dist.scatter(spread[rank], list(spread) if rank == 1 else None, src=1)
    assert_close(spread, rows(5), "scatter")

    summed = part(rank, size * 7, torch.float32).to(device)
    before = summed.clone()
    mine = slice(rank * 7, rank * 7 + 7)
    reduce_scatter_single(summed[mine], summed)
    expected = before.clone()
    expected[mine] = reduced(size, size * 7, torch.float32, "SUM")[mine].to(device)
    assert_close(summed, expected.cpu(), "reduce_scatter_single")
    summed.copy_(before)
    dist.reduce_scatter(summed[mine], list(summed.chunk(size)))
    assert_close(summed, expected.cpu(), "reduce_scatter")


@pytest.mark.ranks(2, 3)
@everywhere
def test_odd_tensors(ranks, device):
    rank, size = ranks.rank, ranks.size
    # Strides with gaps, in and out; what lies between stays as it is.
    rows = torch.full((size * 2, 10), -1.0, device=device)
    source = part(rank, (2, 10), torch.float32).to(device)
    all_gather_single(rows[:, ::2], source[:, 1::2])
    assert_close(
        rows[:, ::2], torch.cat([part(r, (2, 10), torch.float32)[:, 1::2] for r in range(size)]), "gaps"
    )
    assert rows[:, 1::2].eq(-1).all().item()

    # Input and output in the columns of one matrix.
    matrix = part(rank, (6, 2), torch.float32).to(device)
    dist.all_to_all_single(matrix[:, 0], matrix[:, 1], [3] * size, [3] * size) if size == 2 else None
    if size == 2:
        expected = torch.cat(
            [part(r, (6, 2), torch.float32)[3 * rank : 3 * rank + 3, 1] for r in range(size)]
        )
        assert_close(matrix[:, 0], expected, "columns")
        assert_close(matrix[:, 1], part(rank, (6, 2), torch.float32)[:, 1], "columns, the other one")

    image = part(rank, (2, 3, 4, 5), torch.float32).to(device).to(memory_format=torch.channels_last)
    dist.all_reduce(image)
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert_close(image, reduced(size, (2, 3, 4, 5), torch.float32, "SUM"), "channels_last")
    # One rank has the other layout: elements go by index.
    mixed = part(rank, (2, 3, 4, 5), torch.float32).to(device)
    mixed = mixed.to(memory_format=torch.channels_last) if rank else mixed
    dist.all_reduce(mixed)
    assert_close(mixed, reduced(size, (2, 3, 4, 5), torch.float32, "SUM"), "channels_last on some ranks")

    # What is only read may overlap itself.
    one = torch.tensor([float(rank)], device=device)
    output = torch.empty(size * 4, device=device)
    all_gather_single(output, one.expand(4))
    assert output.cpu().tolist() == [float(r) for r in range(size) for _ in range(4)]
    dist.broadcast(one.expand(4) if rank == 0 else output[:4], 0)
    assert output[:4].eq(0).all().item() or rank == 0
    dist.reduce(one.expand(4) if rank else output[:4].zero_(), 0)
    if rank == 0:
        assert output[:4].eq(sum(range(size))).all().item()

    scalar = torch.tensor(float(rank), device=device)
    dist.all_reduce(scalar, dist.ReduceOp.MAX)
    assert scalar.item() == size - 1
    scalars = [torch.zeros((), device=device) for _ in range(size)]
    dist.all_gather(scalars, torch.tensor(float(rank), device=device))
    assert [x.item() for x in scalars] == list(range(size))
    dist.scatter(scalar, [torch.tensor(r + 10.0, device=device) for r in range(size)] if rank == 0 else None)
    assert scalar.item() == rank + 10


def nothing_to_do(rank, size, device):
    def empty(*shape):
        return torch.empty(shape, device=device)

    for shape in [(0,), (3, 0), (0, 4)]:
        whole = (size * shape[0], *shape[1:])
        lists = [empty(*shape) for _ in range(size)]
        dist.all_reduce(empty(*shape))
        dist.reduce(empty(*shape), 0)
        dist.broadcast(empty(*shape), 1)
        dist.all_gather(lists, empty(*shape))
        all_gather_single(empty(*whole), empty(*shape))
        dist.gather(empty(*shape), lists if rank == 0 else None)
        dist.scatter(empty(*shape), lists if rank == 0 else None)
        dist.reduce_scatter(empty(*shape), lists)
        reduce_scatter_single(empty(*shape), empty(*whole))
        dist.all_to_all(lists, [empty(*shape) for _ in range(size)])
        dist.all_to_all_single(empty(*whole), empty(*whole))
        dist.all_to_all_single(empty(0, 2), empty(0, 2), [0] * size, [0] * size)
    # Only one rank has anything, and only for one other.
    sent = [5 if (rank, to) == (0, 1) else 0 for to in range(size)]
    taken = [5 if (source, rank) == (0, 1) else 0 for source in range(size)]
    output = empty(sum(taken))
    dist.all_to_all_single(output, torch.full((sum(sent),), 3.0, device=device), taken, sent)
    assert output.eq(3).all().item() and output.numel() == (5 if rank == 1 else 0)
    # One rank's part is empty.
    outputs = [empty(0 if r == 1 else 4) for r in range(size)]
    dist.all_gather(outputs, torch.full((0 if rank == 1 else 4,), float(rank), device=device))
    assert all(outputs[r].eq(r).all().item() for r in range(size))


@everywhere
def test_zero_size(rank_pool, device):
    rank_pool.run(2, nothing_to_do, device)
    rank_pool.run(3, nothing_to_do, device, hosts=["here", "there", "there"])


@pytest.mark.ranks(2)
@everywhere
def test_tensors_that_require_gradients(ranks, device):
    """Collectives change leaves that require gradients, as torch's own backends do, and record nothing."""
    leaf = torch.full((4,), float(ranks.rank), device=device, requires_grad=True)
    dist.all_reduce(leaf)
    assert leaf.detach().eq(sum(range(ranks.size))).all().item() and leaf.requires_grad and leaf.is_leaf
    product = leaf * 2
    outputs = [torch.zeros(4, device=device) for _ in range(ranks.size)]
    dist.all_gather(outputs, product)
    assert not outputs[0].requires_grad
    strided = torch.ones(2, 4, device=device, requires_grad=True)
    dist.all_reduce(strided.detach().t())
    assert strided.detach().eq(ranks.size).all().item()
    dist.broadcast(product.view(2, 2).t(), 0)  # not contiguous, and not a leaf
    product.sum().backward()
    assert leaf.grad.eq(2).all().item()


@pytest.mark.ranks(2)
@everywhere
def test_nan_stays_nan(ranks, device):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2):
        for op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX):
            values = [1.0, float("nan"), 2.0] if ranks.rank == 0 else [float("nan"), 3.0, 1.0]
            tensor = torch.tensor(values).to(dtype).to(device)
            dist.all_reduce(tensor, op)
            result = tensor.cpu().float()
            assert result.isnan().tolist() == [True, True, False], (dtype, op, result)
            assert result[2] == (1 if op == dist.ReduceOp.MIN else 2)


@pytest.mark.ranks(2)
@everywhere
def test_premul_sum_factors(ranks, device):
    """A factor on a card is read when the stream has come to it, and not when the call is made."""
    factor = torch.zeros(1, device=device)
    for step in range(1, 40):
        tensor = torch.full((1000,), 2.0, device=device)
        factor.fill_(step + ranks.rank)
        work = dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor), async_op=bool(step % 2))
        if work:
            work.wait()
        factor.fill_(-1000)
        assert tensor.eq(2 * sum(step + r for r in range(ranks.size))).all().item(), step
    # On the host a factor is read at the call; it need not have the tensor's dtype.
    for given in (0.5, torch.tensor(0.5), torch.tensor([0.5], dtype=torch.float64), torch.tensor([[2]])):
        tensor = torch.ones(4, device=device, dtype=torch.float16)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(given))
        assert tensor.eq(ranks.size * float(given)).all().item()
    # A bfloat16 of 1/3 is off by 0.1 %, a float32 is not: elements are multiplied in float32.
    tensor = torch.full((4,), 3.0, device=device, dtype=torch.bfloat16)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(1 / 3))
    assert tensor.eq(ranks.size).all().item()


@pytest.mark.ranks(2)
@everywhere
def test_complex(ranks, device):
    """torch hands most of them on as pairs of real numbers."""
    rank, size = ranks.rank, ranks.size
    mine = torch.tensor([1 + 1j, rank * 1j], device=device)
    tensor = mine.clone()
    dist.all_reduce(tensor)
    assert tensor.cpu().tolist() == [size * (1 + 1j), sum(range(size)) * 1j]
    outputs = torch.zeros(size * 2, dtype=torch.complex64, device=device)
    all_gather_single(outputs, mine)
    assert outputs[2 * (size - 1) + 1].item() == (size - 1) * 1j
    output = torch.zeros(1, dtype=torch.complex64, device=device)
    reduce_scatter_single(output, torch.full((size,), 2 + 1j, device=device))
    assert output.item() == size * (2 + 1j)
    swapped = torch.zeros(size, dtype=torch.complex64, device=device)
    dist.all_to_all_single(swapped, torch.full((size,), rank * 1j, device=device))
    assert swapped.cpu().tolist() == [r * 1j for r in range(size)]
    with pytest.raises(ValueError, match="complex"):  # torch's own check
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
    # torch's dispatcher would hand on a resolved copy, and lose the result; what comes past it is refused.
    lazy = tensor.conj()
    with pytest.raises(ValueError, match="lazy conjugate"):
        dist.group.WORLD._get_backend(torch.device(device)).allreduce([lazy])


@pytest.mark.ranks(2)
@everywhere
def test_handles_give_the_outputs(ranks, device):
    """What ProcessGroupNCCL's handles give: the outputs, as one list."""
    rank, size = ranks.rank, ranks.size

    def filled(*shape, value=1.0):
        return torch.full(shape, float(value), device=device)

    tensor, outputs = filled(4), [filled(4) for _ in range(size)]
    flat = filled(4 * size)
    calls = {
        "all_reduce": (lambda: dist.all_reduce(tensor, async_op=True), [tensor]),
        "reduce": (lambda: dist.reduce(tensor, 0, async_op=True), [tensor]),
        "broadcast": (lambda: dist.broadcast(tensor, 0, async_op=True), [tensor]),
        "all_gather": (lambda: dist.all_gather(outputs, filled(4), async_op=True), outputs),
        "all_gather_single": (lambda: all_gather_single(flat, filled(4), async_op=True), [flat]),
        "gather": (
            lambda: dist.gather(filled(4), outputs if rank == 0 else None, async_op=True),
            outputs if rank == 0 else [],
        ),
        "scatter": (
            lambda: dist.scatter(tensor, [filled(4)] * size if rank == 0 else None, async_op=True),
            [tensor],
        ),
        "reduce_scatter": (lambda: dist.reduce_scatter(tensor, [filled(4)] * size, async_op=True), [tensor]),
        "reduce_scatter_single": (
            lambda: reduce_scatter_single(tensor, filled(4 * size), async_op=True),
            [tensor],
        ),
        "all_to_all": (lambda: dist.all_to_all(outputs, [filled(4)] * size, async_op=True), outputs),
        "all_to_all_single": (
            lambda: dist.all_to_all_single(flat, filled(4 * size), async_op=True),
            [flat],
        ),
    }
    for name, (call, expected) in calls.items():
        work = call()
        for given in (work.result(), work.get_future().wait()):
            assert [x.data_ptr() for x in given] == [x.data_ptr() for x in expected], name
        work.wait()
        torch.accelerator.synchronize()
        assert work.is_success(), name


@pytest.mark.ranks(2)
def test_the_tensor_chooses_the_card(ranks):
    for card in (ranks.rank + ranks.size, ranks.rank):
        tensor = torch.ones(10, device=f"vdev:{card}")
        dist.all_reduce(tensor)
        assert tensor.eq(ranks.size).all().item() and tensor.device.index == card


@pytest.mark.ranks(2, group=False)
def test_a_bound_group_refuses_another_card(ranks):
    rank, size = ranks.rank, ranks.size
    dist.init_process_group(
        "vccl", store=ranks.store, rank=rank, world_size=size, device_id=torch.device("vdev", rank)
    )
    other = torch.ones(10, device=f"vdev:{rank + size}")
    calls = {
        "all_reduce": lambda: dist.all_reduce(other),
        "send": lambda: dist.send(other, 1 - rank),
        "recv": lambda: dist.recv(other, 1 - rank),
        "all_gather": lambda: dist.all_gather([other.clone() for _ in range(size)], other),
    }
    for name, call in calls.items():
        text = rf"{name}.*: the tensor is on vdev:{rank + size}, and rank {rank} .* bound to vdev:{rank} "
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(ValueError, match=f"bound to vdev:{rank} "):
        dist.all_reduce(other, group=dist.new_group([0, 1]))
    for device in ("cpu", f"vdev:{rank}"):
        mine = torch.ones(10, device=device)
        dist.all_reduce(mine)
        assert mine.eq(size).all().item()


def sparse(rank, size):
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        # Two sparse dimensions and a dense one; indices that come twice; one rank has nothing.
        count = 0 if rank == 1 else 50
        generator = torch.Generator().manual_seed(rank)
        indices = torch.randint(0, 6, (2, count), generator=generator)
        values = torch.randint(-3, 4, (count, 3), generator=generator).to(dtype)
        mine = torch.sparse_coo_tensor(indices, values, (6, 6, 3), check_invariants=True)
        dense = mine.to_dense().double()
        work = dist.all_reduce(mine, async_op=True)
        work.wait()
        dist.all_reduce(dense)
        assert mine.is_coalesced() and torch.equal(mine.to_dense().double(), dense), dtype
    nothing = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0), (5,))
    dist.all_reduce(nothing)
    assert nothing._nnz() == 0
    embedding = torch.nn.Embedding(10, 4, sparse=True)
    embedding(torch.tensor([rank, 9])).sum().backward()
    dist.all_reduce(embedding.weight.grad, dist.ReduceOp.AVG)
    assert torch.equal(embedding.weight.grad.to_dense()[9], torch.ones(4))


def test_sparse_all_reduce(rank_pool):
    rank_pool.run(3, sparse)
    rank_pool.run(2, sparse, hosts=["here", "there"])


def trace_of(call, path):
    with torch.profiler.profile(record_shapes=True) as profile:
        call()
    profile.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    return [event["args"] for event in events if event.get("name") == "record_param_comms"]


@pytest.mark.ranks(2)
@everywhere
def test_profiler_gets_sizes(ranks, device, tmp_path):
    rank, size = ranks.rank, ranks.size

    def ones(*shape):
        return torch.ones(shape, device=device)

    lists = [ones(4) for _ in range(size)]
    calls = {
        "reduce": (lambda: dist.reduce(ones(4), 0), 4, 4),
        "gather": (lambda: dist.gather(ones(4), lists if rank == 0 else None), 4, 0 if rank else 4 * size),
        "scatter": (lambda: dist.scatter(ones(4), lists if rank == 0 else None), 0 if rank else 4 * size, 4),
        "reduce_scatter": (lambda: dist.reduce_scatter(ones(4), lists), 4 * size, 4),
        "reduce_scatter_tensor": (lambda: reduce_scatter_single(ones(4), ones(4 * size)), 4 * size, 4),
        "all_to_all_single": (
            lambda: dist.all_to_all_single(ones(6, 2), ones(6, 2), [3, 3], [3, 3]),
            12,
            12,
        ),
    }
    for name, (call, input_elements, output_elements) in calls.items():
        call()  # communicators are made at first use
        (args,) = trace_of(call, tmp_path / f"{name}_{rank}.json")
        assert args["Collective name"] == name, args
        assert args["In msg nelems"] == input_elements and args["Out msg nelems"] == output_elements, args
        assert args["Group size"] == size and args["Rank"] == rank, args
        if name == "all_to_all_single":
            assert args["In split size"] == "[3, 3]" and args["Out split size"] == "[3, 3]", args
            assert args["dtype"] == "Float", args
