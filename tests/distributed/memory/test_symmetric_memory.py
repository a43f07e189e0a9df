"""Symmetric memory: torch.distributed._symmetric_memory over cards of one host."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from gate import Gate
from symmetric_cases import OPERATORS, empty, error_of, settled, shared, world_name
from torch._C._distributed_c10d import _SymmetricMemory


@pytest.mark.ranks(2)
@settled
def test_what_is_symmetric(ranks):
    tensor = empty(64, 64)
    # In pose, the first key is "cuda", too, and the second one counts.
    assert symmetric.get_backend(tensor.device) == {"vdev": "VCCL", "cuda": "CUDA"}[tensor.device.type]
    assert symmetric.is_symm_mem_tensor(tensor) and not symmetric.is_symm_mem_tensor(torch.empty(1))
    ordinary = torch.empty(64, device="vdev")
    assert not symmetric.is_symm_mem_tensor(ordinary)
    assert symmetric.rendezvous(ordinary, dist.group.WORLD) is None
    assert not tensor.any()
    handle = symmetric.rendezvous(tensor, dist.group.WORLD)
    assert symmetric.rendezvous(tensor, dist.group.WORLD).buffer_ptrs == handle.buffer_ptrs
    assert (handle.rank, handle.world_size, handle.buffer_size) == (ranks.rank, 2, tensor.nbytes)
    assert handle.device == tensor.device and handle.buffer_ptrs[ranks.rank] == tensor.data_ptr()


def test_kernels_do_not_tell_torch_their_types_in_cpp():
    """A torch that was built with CUDA has kernels of other types for these operators, and refuses ours."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("symm_mem::")]
    kernels = [line for name in names for line in torch._C._dispatch_dump(name).splitlines()]
    ours = [line for line in kernels if "csrc_pg/symmetric/" in line]
    assert len(ours) >= 30
    assert [line for line in ours if not line.endswith(" :: (none) [ boxed ]")] == []


@pytest.mark.ranks(3)
@settled
def test_peers_read_and_write_each_others_buffers(ranks):
    tensor, handle = shared(1000)
    tensor.fill_(ranks.rank)
    handle.barrier()
    right = (ranks.rank + 1) % 3
    assert handle.get_buffer(right, (1000,), torch.float32).eq(right).all()
    handle.barrier()
    handle.get_buffer(right, (10,), torch.float32, storage_offset=5).fill_(100 + ranks.rank)
    handle.barrier()
    expected = torch.full((1000,), float(ranks.rank))
    expected[5:15] = 100 + (ranks.rank - 1) % 3
    assert torch.equal(tensor.cpu(), expected)


@pytest.mark.ranks(2)
@settled
def test_signals_order_streams_and_leave_the_pads_as_they_were(ranks):
    tensor, handle = shared(100_000)
    for value in range(1, 20):
        if ranks.rank == 0:
            handle.get_buffer(1, (100_000,), torch.float32).fill_(value)
            handle.put_signal(dst_rank=1, channel=value % 3)
            handle.wait_signal(src_rank=1, channel=value % 3)
        else:
            handle.wait_signal(src_rank=0, channel=value % 3)
            read = tensor.clone()
            handle.put_signal(dst_rank=0, channel=value % 3)
            assert read.eq(value).all()
    handle.barrier()
    assert not handle.get_signal_pad(ranks.rank).any()
    assert handle.get_signal_pad(1 - ranks.rank).dtype == torch.uint32


@pytest.mark.ranks(2)
@settled
def test_channels_are_apart_on_two_streams(ranks):
    _, handle = shared(16)
    other = torch.vdev.Stream()
    # Each stream waits in the order that the other rank does not have.
    first, second = (0, 1) if ranks.rank == 0 else (1, 0)
    for _ in range(50):
        with torch.vdev.stream(other) if first else torch.vdev.stream(torch.vdev.default_stream()):
            handle.barrier(channel=first)
        with torch.vdev.stream(other) if second else torch.vdev.stream(torch.vdev.default_stream()):
            handle.barrier(channel=second)
    torch.accelerator.synchronize()


@pytest.mark.ranks(2)
@settled
def test_wrong_arguments_are_refused(ranks):
    _, handle = shared(16)
    assert "(got 5000)" in error_of(lambda: handle.barrier(channel=5000))
    assert "rank 2 does not exist" in error_of(lambda: handle.put_signal(dst_rank=2))
    assert "must be allocated with" in error_of(
        lambda: OPERATORS.one_shot_all_reduce(torch.ones(4, device="vdev"), "sum", world_name())
    )
    assert "only 'sum'" in error_of(lambda: OPERATORS.one_shot_all_reduce(empty(4), "avg", world_name()))


@pytest.mark.ranks(2)
@settled
def test_sizes_that_differ_are_an_error_on_all_ranks(ranks):
    tensor = empty(16 + 16 * ranks.rank)
    text = error_of(lambda: symmetric.rendezvous(tensor, dist.group.WORLD))
    assert "rank 1" in text and "128 bytes" in text and "64" in text


@pytest.mark.ranks(2, hosts=2)
def test_a_group_of_several_hosts_is_refused(ranks):
    tensor = empty(16)
    with pytest.raises(NotImplementedError, match=r"rank 0.*rank 1|rank 1.*rank 0"):
        symmetric.rendezvous(tensor, dist.group.WORLD)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settled
def test_reductions(ranks, dtype):
    group, size = world_name(), 4
    whole, _ = shared(16384, dtype=dtype)
    for begin, count in ((0, 16384), (8, 4100), (3, 1)):
        part = whole[begin : begin + count]
        expected = torch.arange(count).remainder(7).to(dtype) * (1 + 2 + 3 + 4)

        def fill(part=part, count=count):
            part.copy_(torch.arange(count).remainder(7).to(dtype) * (ranks.rank + 1))

        fill()
        for operator in (OPERATORS.one_shot_all_reduce, OPERATORS.multimem_one_shot_all_reduce):
            assert torch.equal(operator(part, "sum", group).cpu(), expected)
        out = torch.empty_like(part)
        OPERATORS.two_shot_all_reduce_out(part, "sum", group, out)
        assert torch.equal(out.cpu(), expected)
        local = part.clone()
        assert torch.equal(OPERATORS.one_shot_all_reduce_copy(part, local, "sum", group).cpu(), expected)
        OPERATORS.multimem_one_shot_reduce_out(part, "sum", 2, group, out.zero_())
        assert torch.equal(out.cpu(), expected if ranks.rank == 2 else torch.zeros_like(expected))
        for operator in (OPERATORS.two_shot_all_reduce_, OPERATORS.multimem_all_reduce_):
            fill()
            operator(part, "sum", group)
            assert torch.equal(part.cpu(), expected)
    whole.copy_((torch.arange(16384) % 5).to(dtype))
    matrix = whole.view(-1, 64)
    for split_last in (False, True):
        shape = (256, 64 // size) if split_last else (256 // size, 64)
        out = torch.empty(shape, dtype=dtype, device="vdev")
        OPERATORS.reduce_scatter_out(matrix, group, split_last, out)
        total = (torch.arange(16384) % 5).to(dtype).view(256, 64) * size
        assert torch.equal(out.cpu(), total.chunk(size, -1 if split_last else 0)[ranks.rank])
    assert "divisible" in error_of(
        lambda: OPERATORS.reduce_scatter_out(
            whole[:12], group, False, torch.empty(3, dtype=dtype, device="vdev")
        )
    )


@pytest.mark.ranks(2)
@settled
def test_tiles_and_offsets(ranks):
    group = world_name()
    matrix, _ = shared(8, 8)
    matrix.fill_(ranks.rank + 1)
    out = torch.zeros(4, 4, device="vdev")
    OPERATORS.tile_reduce(matrix[:4, 4:], out, 1, group)
    assert out.eq(3 if ranks.rank == 1 else 0).all()
    OPERATORS.multi_root_tile_reduce([matrix[:4, :4], matrix[4:, 4:]], out.zero_(), [0, 1], group)
    assert out.eq(3).all()
    outs = [torch.zeros(8, 3 if ranks.rank else 5, device="vdev")]
    symmetric.reduce_scatter_offset(matrix, outs, group, dim=1, offsets=[5, 8])
    assert outs[0].eq(3).all()


@pytest.mark.ranks(2)
@settled
def test_data_that_is_put_and_signalled(ranks):
    tensor, handle = shared(32)
    other = 1 - ranks.rank
    symmetric.put_signal(torch.full((32,), 7.0 + ranks.rank, device="vdev"), handle, other)
    symmetric.wait_signal(handle, other)
    assert tensor.eq(7 + other).all()
    handle.barrier()
    tensor.fill_(ranks.rank)
    handle.barrier()
    if ranks.rank == 0:
        OPERATORS.nvshmem_get(tensor, 1)
        assert tensor.eq(1).all()
        OPERATORS.nvshmem_put(tensor.fill_(5), 1)
    handle.barrier()
    assert tensor.eq(5).all()
    handle.barrier()
    pad = handle.get_signal_pad(ranks.rank, (1,), dtype=torch.int64, storage_offset=64)
    if ranks.rank == 0:
        OPERATORS.nvshmem_put_with_signal(tensor.fill_(9), pad, 12, 1)
    else:
        OPERATORS.nvshmem_wait_for_signal(pad, 12, 0)
        assert tensor.eq(9).all()
    out, _ = shared(32)
    OPERATORS.nvshmem_all_to_all(tensor.fill_(ranks.rank), out, world_name())
    assert out.view(2, 16).eq(torch.tensor([[0.0], [1.0]], device="vdev")).all()
    OPERATORS.nvshmem_broadcast(out.fill_(ranks.rank), 1, world_name())
    assert out.eq(1).all()
    gathered, _ = shared(8)
    OPERATORS.multimem_all_gather_out(
        torch.full((4,), float(ranks.rank), device="vdev"), world_name(), gathered
    )
    assert gathered.tolist() == [0.0] * 4 + [1.0] * 4


def reference_of_2d(inputs, splits, ranks: int, experts: int, rank: int, align: int | None):
    """The rows, splits and offsets that `rank` gets: of each expert, those of all ranks."""
    rows, counts, offsets, at = {}, [], [], 0
    for expert in range(experts):
        begin = at
        for source in range(ranks):
            chunk = inputs[source].split(splits[source])[rank * experts + expert]
            counts.append(len(chunk))
            offsets.append(at)
            for row in chunk:
                rows[at] = row
                at += 1
        if align is not None:
            at = begin + -(-max(at - begin, 1) // align) * align
    return rows, counts, offsets


@pytest.mark.ranks(2)
@pytest.mark.parametrize("align", [None, 1, 4])
@settled
def test_all_to_all_with_splits_on_the_card(ranks, align):
    experts, group = 3, world_name()
    splits = [[2, 0, 3, 1, 4, 0], [1, 0, 5, 2, 0, 0]]
    inputs = [torch.arange(100.0 * r, 100.0 * r + 64).view(32, 2)[: sum(splits[r])] for r in range(2)]
    source, _ = shared(32, 2)
    source[: len(inputs[ranks.rank])] = inputs[ranks.rank].to("vdev")
    out, _ = shared(64, 2)
    own_splits = torch.tensor(splits[ranks.rank], device="vdev")
    found = torch.zeros(2, 6, dtype=torch.int64, device="vdev")
    OPERATORS.all_to_all_vdev_2d(source, out, own_splits, found, group, align)
    rows, counts, offsets = reference_of_2d(inputs, splits, 2, experts, ranks.rank, align)
    assert found.tolist() == [counts, offsets]
    host = out.cpu()
    assert all(torch.equal(host[at], row) for at, row in rows.items())
    # The way back takes the offsets as they came, and gives the rows in their first order.
    back, _ = shared(32, 2)
    found_back = torch.zeros(2, 6, dtype=torch.int64, device="vdev")
    OPERATORS.all_to_all_vdev_2d_offset(out, back, found, found_back, group)
    assert found_back[0].tolist() == splits[ranks.rank]
    assert torch.equal(back.cpu()[: len(inputs[ranks.rank])], inputs[ranks.rank])


@pytest.mark.ranks(2)
@settled
def test_all_to_all(ranks):
    source, _ = shared(8)
    out, _ = shared(8)
    splits = torch.tensor([[1, 2], [3, 4]][ranks.rank], device="vdev")
    found = torch.zeros(2, 2, dtype=torch.int64, device="vdev")
    OPERATORS.all_to_all_vdev(source.fill_(ranks.rank), out, splits, found, world_name())
    assert found.tolist() == [[[1, 3], [0, 1]], [[2, 4], [0, 2]]][ranks.rank]
    assert out.tolist()[: sum(found[0].tolist())] == [0.0] * found[0][0] + [1.0] * found[0][1]


@pytest.mark.ranks(2)
@settled
def test_words(ranks):
    words = torch.zeros(4, dtype=torch.uint32, device="vdev")
    _SymmetricMemory.stream_write_value32(words, 2, 7)
    _SymmetricMemory.memset32(words, offset=0, val=4294967295, count=2)
    assert words.tolist() == [4294967295, 4294967295, 7, 0]
    assert "greater than or equal to 0" in error_of(
        lambda: _SymmetricMemory.stream_write_value32(words, offset=-1, val=1)
    )


def persistent(number: int) -> torch.Tensor:
    """Memory that compiled code takes anew in each of its calls."""
    card = torch.device("vdev", torch.vdev.current_device())
    return _SymmetricMemory.empty_strided_p2p(
        (8, 8), (8, 1), torch.float32, card, group_name=world_name(), alloc_id=number
    )


@pytest.mark.ranks(2)
@settled
def test_persistent_memory_is_taken_again_while_tasks_use_it(ranks):
    x = torch.ones(8, 8, device="vdev")
    users = [
        lambda memory: memory.fill_(1).add(1),
        lambda memory: torch.mm(x, x, out=memory),
        lambda memory: memory.copy_(torch.ones(8, 8).pin_memory(), non_blocking=True),
        lambda memory: torch.empty(8, 8, pin_memory=True).copy_(memory, non_blocking=True),
        lambda memory: dist.all_reduce(memory),
        lambda memory: OPERATORS.one_shot_all_reduce(memory, "sum", world_name()),
    ]
    dist.all_reduce(persistent(99))
    for number, use in enumerate(users):
        use(persistent(number))  # ranks meet on the host in the first call
        with Gate() as gate:
            memory = persistent(number)
            at = memory.data_ptr()
            result = use(memory)
            if number > 0:
                del result  # it may be the memory itself
            del memory
            again = persistent(number)
            assert again.data_ptr() == at, number
            again.fill_(5)
            gate.open()
        assert again.eq(5).all().item(), number
        if number == 0:
            assert result.eq(2).all().item()
        assert "still active" in error_of(lambda: persistent(number))  # noqa: B023
        del again


@pytest.mark.ranks(2)
@settled
def test_product_of_chunks_waits_for_each_chunk(ranks):
    a, b = torch.zeros(8, 4, device="vdev"), torch.rand(4, 3).to("vdev")
    signals = torch.zeros(2, dtype=torch.uint32, device="vdev")
    other = torch.vdev.Stream()
    other.wait_stream(torch.vdev.current_stream())
    out = OPERATORS._async_input_mm(a, b, signals, 1)
    values = torch.rand(8, 4)
    with torch.vdev.stream(other):
        for chunk in (1, 0):
            rows = slice(4 * chunk, 4 * chunk + 4)
            a[rows].copy_(values[rows].pin_memory(), non_blocking=True)
            _SymmetricMemory.stream_write_value32(signals, chunk, 1)
    torch.testing.assert_close(out.cpu(), values @ b.cpu())


@pytest.mark.ranks(2)
@settled
def test_tensors_of_the_pool(ranks):
    device = torch.device("vdev", torch.vdev.current_device())
    pool = symmetric.get_mem_pool(device)
    with torch.vdev.use_mem_pool(pool):
        tensor = torch.full((100,), float(ranks.rank), device=device)
    assert symmetric.is_symm_mem_tensor(tensor)
    handle = symmetric.rendezvous(tensor, dist.group.WORLD)
    handle.barrier()
    assert handle.get_buffer(1 - ranks.rank, (100,), torch.float32).eq(1 - ranks.rank).all()
    handle.barrier()
    address = tensor.data_ptr()
    del tensor, handle
    # Once no rank uses it any more, the memory goes back to the pool, and is symmetric anew.
    dist.barrier()
    with torch.vdev.use_mem_pool(pool):
        again = torch.ones(100, device=device)
    assert again.data_ptr() == address or symmetric.is_symm_mem_tensor(again)
    assert OPERATORS.one_shot_all_reduce(again, "sum", world_name()).eq(2).all()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("gather_dim", [0, 1, 2])
@settled
def test_async_tensor_parallelism(ranks, gather_dim):
    group = world_name()
    torch.manual_seed(ranks.rank)
    shape = [4, 8, 16]
    shape[gather_dim] //= 2
    shard = torch.rand(shape).to("vdev")
    factors = [torch.rand(16, 6).to("vdev") for _ in range(2)]
    expected, products = symmetric._fused_all_gather_matmul_fallback(shard, factors, gather_dim, group)
    found, found_products = OPERATORS.fused_all_gather_matmul(shard, factors, gather_dim, group)
    torch.testing.assert_close(found, expected)
    for product, other in zip(found_products, products, strict=True):
        torch.testing.assert_close(product, other)
    whole, factor = torch.rand(4, 8, 16).to("vdev"), torch.rand(16, 6).to("vdev")
    arguments = (whole, factor, "avg", gather_dim, group)
    expected = symmetric._fused_matmul_reduce_scatter_fallback(*arguments)
    torch.testing.assert_close(OPERATORS.fused_matmul_reduce_scatter(*arguments), expected)


@pytest.mark.daily
@pytest.mark.ranks(2)
@settled
def test_compiled_tensor_parallelism_is_pipelined(ranks, monkeypatch):
    from torch._inductor import config
    from torch._inductor.utils import fresh_cache, run_and_get_code

    functional, group = torch.ops._c10d_functional, world_name()
    monkeypatch.setattr(config, "_micro_pipeline_tp", True)
    symmetric.enable_symm_mem_for_group(group)

    def gather_and_multiply(shard, factor):
        return functional.wait_tensor(functional.all_gather_into_tensor(shard, 2, group)) @ factor

    def multiply_and_scatter(whole, factor):
        return functional.wait_tensor(functional.reduce_scatter_tensor(whole @ factor, "avg", 2, group))

    torch.manual_seed(ranks.rank)
    with fresh_cache():
        for function, operator in (
            (gather_and_multiply, "fused_all_gather_matmul"),
            (multiply_and_scatter, "fused_matmul_reduce_scatter"),
        ):
            arguments = torch.rand(8, 16).to("vdev"), torch.rand(16, 4).to("vdev")
            found, code = run_and_get_code(torch.compile(function, fullgraph=True), *arguments)
            assert operator in "".join(code)
            torch.testing.assert_close(found, function(*arguments))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("is_symmetric", [True, False])
@settled
def test_collectives_of_the_copy_engine(ranks, is_symmetric):
    tensor = empty(8, 4) if is_symmetric else torch.empty(8, 4, device="vdev")
    tensor.copy_(torch.arange(32.0).view(8, 4) + ranks.rank)
    wait = torch.ops._c10d_functional.wait_tensor
    gathered = wait(OPERATORS._low_contention_all_gather(tensor, world_name()))
    assert torch.equal(gathered.cpu(), torch.cat([torch.arange(32.0).view(8, 4) + r for r in range(2)]))
    scattered = wait(OPERATORS._low_contention_reduce_scatter(tensor, "sum", world_name()))
    total = 2 * torch.arange(32.0).view(8, 4) + 1
    assert torch.equal(scattered.cpu(), total.chunk(2)[ranks.rank])


@pytest.mark.ranks(2)
@settled
def test_a_barrier_in_a_graph(ranks):
    tensor, handle = shared(16)
    handle.barrier()
    torch.accelerator.synchronize()
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        handle.get_buffer(1 - ranks.rank, (16,), torch.float32).add_(1)
        handle.barrier()
    for _ in range(3):
        graph.replay()
    torch.accelerator.synchronize()
    dist.barrier()
    assert tensor.eq(3).all()
