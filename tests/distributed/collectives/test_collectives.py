"""Every collective, dtype and reduction against a float64 reference, on cards and on the CPU."""

import itertools
import threading

import pytest
import torch
import torch.distributed as dist
from references import DTYPES, FLOATS, assert_close, part, reduced

from vccl._device_type import backend_name
from vccl.testing import GROUP_TIMEOUT

OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX"]
DEVICES = ["vdev", "cpu"]
# One element, fewer than ranks, odd, over one block of the transport (256 KiB).
COUNTS = [1, 3, 1001, 100_003]

everywhere = pytest.mark.parametrize("device", DEVICES)


def all_reduce_everything(rank, size, device):
    for dtype, op, count in itertools.product(DTYPES, OPS, COUNTS):
        if op == "AVG" and dtype == torch.bool:
            continue  # has no meaning: test_matrix
        if count == COUNTS[-1] and dtype not in (torch.float32, torch.bfloat16, torch.uint8):
            continue
        tensor = part(rank, count, dtype).to(device)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
        assert_close(tensor, reduced(size, count, dtype, op), f"{op} of {count} {dtype} on {device}")


@pytest.mark.ranks(1, 2, 4)
@everywhere
def test_all_reduce(ranks, device):
    all_reduce_everything(ranks.rank, ranks.size, device)


def broadcast_everything(rank, size, device):
    for dtype, count, source in itertools.product(DTYPES, COUNTS, range(size)):
        if count == COUNTS[-1] and dtype != torch.float32:
            continue
        tensor = part(rank, count, dtype, seed=source).to(device)
        dist.broadcast(tensor, source)
        assert_close(
            tensor, part(source, count, dtype, seed=source), f"{count} {dtype} from {source} on {device}"
        )


@pytest.mark.ranks(1, 2, 4)
@everywhere
def test_broadcast(ranks, device):
    broadcast_everything(ranks.rank, ranks.size, device)


def all_gather_everything(rank, size, device):
    for dtype, count in itertools.product(DTYPES, COUNTS):
        if count == COUNTS[-1] and dtype != torch.float32:
            continue
        mine = part(rank, count, dtype).to(device)
        expected = [part(other, count, dtype) for other in range(size)]

        listed = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(listed, mine)
        for other in range(size):
            assert_close(listed[other], expected[other], f"list, {count} {dtype} of {other}")

        flat = torch.empty(size * count, dtype=dtype, device=device)
        dist.all_gather_into_tensor(flat, mine)
        assert_close(flat, torch.cat(expected), f"tensor, {count} {dtype}")

        # The parts of one buffer: gathered in place, the input being one of them.
        buffer = torch.zeros(size, count, dtype=dtype, device=device)
        buffer[rank].copy_(mine)
        dist.all_gather(list(buffer.unbind()), buffer[rank])
        assert_close(buffer, torch.stack(expected), f"in place, {count} {dtype}")


@pytest.mark.ranks(1, 2, 4)
@everywhere
def test_all_gather(ranks, device):
    all_gather_everything(ranks.rank, ranks.size, device)


def non_contiguous(rank, size, device):
    shape, transposed = (33, 65), (65, 33)
    tensor = part(rank, transposed, torch.float32).to(device).t()
    expected = reduced(size, transposed, torch.float32, "SUM").t()
    dist.all_reduce(tensor)
    assert not tensor.is_contiguous()
    assert_close(tensor, expected, "transposed")

    every_second = torch.full((2, 100), -1.0, device=device)
    every_second[:, ::2] = rank
    dist.broadcast(every_second[:, ::2], size - 1)
    assert every_second[:, ::2].eq(size - 1).all()
    assert every_second[:, 1::2].eq(-1).all()

    outputs = [torch.empty(transposed, device=device).t() for _ in range(size)]
    mine = part(rank, shape, torch.float32).to(device)
    dist.all_gather(outputs, mine if rank else mine.t().contiguous().t())
    for other in range(size):
        assert_close(outputs[other], part(other, shape, torch.float32), "all_gather of transposed outputs")

    # One rank's tensor is contiguous and the other's is not: elements are paired by index, not by address.
    mixed = part(rank, (8, 9), torch.float64).to(device)
    mixed = mixed if rank else mixed.t().contiguous().t()
    dist.all_reduce(mixed)
    assert_close(mixed, reduced(size, (8, 9), torch.float64, "SUM"), "mixed layouts")

    # Contiguous, but at an odd place of its storage.
    whole = torch.zeros(1000, dtype=torch.float16, device=device)
    whole[3:].copy_(part(rank, 997, torch.float16))
    dist.all_reduce(whole[3:])
    assert_close(whole[3:], reduced(size, 997, torch.float16, "SUM"), "offset")
    assert whole[:3].eq(0).all()

    gathered = torch.empty(9, size * 8, device=device).t()
    dist.all_gather_into_tensor(gathered, part(rank, (8, 9), torch.float32).to(device))
    assert_close(
        gathered, torch.cat([part(other, (8, 9), torch.float32) for other in range(size)]), "into tensor"
    )


@pytest.mark.ranks(2)
@everywhere
def test_non_contiguous_tensors(ranks, device):
    non_contiguous(ranks.rank, ranks.size, device)


@pytest.mark.ranks(1, 2, 4)
@everywhere
def test_empty_and_scalar_tensors(ranks, device):
    for shape in [(0,), (3, 0)]:
        tensor = torch.empty(shape, device=device)
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        outputs = [torch.empty(shape, device=device) for _ in range(ranks.size)]
        dist.all_gather(outputs, tensor)
        dist.all_gather_into_tensor(torch.empty((ranks.size * shape[0], *shape[1:]), device=device), tensor)
    scalar = torch.tensor(float(ranks.rank), device=device)
    dist.all_reduce(scalar)
    assert scalar.item() == sum(range(ranks.size))


@pytest.mark.ranks(2)
@everywhere
def test_async(ranks, device):
    tensors = [part(ranks.rank, 1000 + i, torch.float32, seed=i).to(device) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for i, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        assert work.wait()
        assert_close(tensor, reduced(ranks.size, 1000 + i, torch.float32, "SUM", seed=i), f"number {i}")
        assert work.is_completed() and work.is_success()
        assert work.result()[0].data_ptr() == tensor.data_ptr()
        assert work._get_duration() > 0


def futures(rank, size, device):
    tensor = part(rank, 5000, torch.float64).to(device)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    halved = future.then(lambda done: done.value()[0] / 2)
    expected = reduced(size, 5000, torch.float64, "SUM")
    assert_close(halved.wait(), expected / 2, "then")
    assert_close(future.wait()[0], expected, "value")

    # A callback that itself waits for a collective, as PowerSGD's does.
    def again(done):
        return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]

    tensor = torch.ones(10, device=device)
    chained = dist.all_reduce(tensor, async_op=True).get_future().then(again)
    assert_close(chained.wait(), torch.full((10,), float(size * size)), "nested")


@pytest.mark.ranks(2)
@everywhere
def test_futures(ranks, device):
    futures(ranks.rank, ranks.size, device)


def coalesced(rank, size, device):
    tensors = [part(rank, count, torch.float32, seed=count).to(device) for count in (1, 17, 1000)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        count = tensor.numel()
        assert_close(tensor, reduced(size, count, torch.float32, "SUM", seed=count), f"coalesced {count}")


def functional(rank, size, device):
    import torch.distributed._functional_collectives as funcol

    group = dist.group.WORLD
    mine = part(rank, 100, torch.float32).to(device)
    total = funcol.all_reduce(mine, "sum", group)
    assert_close(total, reduced(size, 100, torch.float32, "SUM"), "functional all_reduce")
    gathered = funcol.all_gather_tensor(mine, 0, group)
    assert_close(
        gathered, torch.cat([part(r, 100, torch.float32) for r in range(size)]), "functional all_gather"
    )


@pytest.mark.ranks(2)
@everywhere
def test_coalesced_and_functional(ranks, device):
    coalesced(ranks.rank, ranks.size, device)
    functional(ranks.rank, ranks.size, device)


def objects(rank, size):
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    assert gathered == [{"rank": r, "text": "x" * r} for r in range(size)]
    box = [{"from": rank}]
    dist.broadcast_object_list(box, src=1)
    assert box == [{"from": 1}]


@pytest.mark.ranks(2)
def test_object_collectives(ranks):
    objects(ranks.rank, ranks.size)


def barriers(rank, size):
    dist.barrier()
    dist.barrier(device_ids=[rank])
    dist.barrier(async_op=True).wait()
    tensor = torch.full((1 << 20,), float(rank), device="vdev")
    work = dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    assert work.is_completed()


@pytest.mark.ranks(1, 2, 4)
def test_barrier(ranks):
    barriers(ranks.rank, ranks.size)


@pytest.mark.ranks(2)
@everywhere
def test_same_as_gloo(ranks, device):
    gloo = dist.new_group(backend="gloo")
    for dtype in FLOATS:
        theirs = part(ranks.rank, 4099, dtype)
        ours = theirs.to(device)
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
            theirs = part(ranks.rank, 4099, dtype)
            ours = theirs.to(device)
            dist.all_reduce(theirs, op, group=gloo)
            dist.all_reduce(ours, op)
            if ranks.size == 2:  # two terms have one order: the same bits
                assert torch.equal(ours.cpu(), theirs), f"{op} {dtype}"
            else:
                assert_close(ours, theirs, f"{op} {dtype}")


@pytest.mark.ranks(4)
@everywhere
def test_same_bits_on_every_run_and_rank(ranks, device):
    results = []
    for _ in range(5):
        tensor = part(ranks.rank, 50_000, torch.float32).to(device)
        dist.all_reduce(tensor)
        results.append(tensor.cpu())
    gathered = [torch.empty_like(results[0]) for _ in range(ranks.size)]
    dist.all_gather(gathered, results[0])
    for other in [*results, *gathered]:
        assert torch.equal(other, results[0])


@pytest.mark.ranks(4)
@everywhere
def test_subgroups(ranks, device):
    rank = ranks.rank
    evens = dist.new_group([0, 2])
    odds = dist.new_group([1, 3])
    mine = evens if rank % 2 == 0 else odds
    tensor = torch.tensor([float(rank)], device=device)
    dist.all_reduce(tensor, group=mine)
    assert tensor.item() == (2 if rank % 2 == 0 else 4)
    dist.broadcast(tensor, 3 if rank % 2 else 0, group=mine)
    dist.all_reduce(tensor)
    assert tensor.item() == 12


@pytest.mark.ranks(4, hosts=2)
@everywhere
def test_two_hosts(ranks, device):
    """The same collectives over two pretended hosts of two ranks."""
    all_reduce_everything(ranks.rank, ranks.size, device)
    broadcast_everything(ranks.rank, ranks.size, device)
    all_gather_everything(ranks.rank, ranks.size, device)


def streams(rank, size):
    """A collective comes after the current stream's work, and what follows on it after the collective."""
    side = torch.Stream(device="vdev")
    tensor = torch.zeros(100_000, device="vdev")
    torch.accelerator.synchronize()
    with side:
        for step in range(1, 30):
            tensor.fill_(step)
            work = dist.all_reduce(tensor, async_op=bool(step % 3))
            if work:
                work.wait()
            tensor.add_(1)
            assert tensor.eq(step * size + 1).all().item(), step
    # Collectives of one group from two streams, in turn: the group keeps their order.
    other = torch.Stream(device="vdev")
    for _ in range(20):
        for stream in (side, other):
            with stream:
                x = torch.ones(1000, device="vdev")
                dist.all_reduce(x)
                assert x.eq(size).all().item()


@pytest.mark.ranks(2)
def test_streams(ranks):
    streams(ranks.rank, ranks.size)


@pytest.mark.ranks(2)
@everywhere
def test_groups_used_from_threads(ranks, device):
    """Groups are independent of each other: each thread uses its own."""
    # On a card each thread has a stream of its own: on one stream, groups in another order on another rank
    # would wait for each other.
    groups = [dist.new_group() for _ in range(3)]
    wrong = []

    def use(number):
        torch.accelerator.set_device_index(ranks.rank)
        torch.accelerator.set_stream(torch.Stream(device=f"vdev:{ranks.rank}"))
        for step in range(50):
            x = torch.full((100 + number,), float(step + number), device=device)
            if step % 2:
                dist.all_reduce(x, group=groups[number])
            else:
                dist.all_reduce(x, group=groups[number], async_op=True).wait()
            if not x.eq(ranks.size * (step + number)).all().item():
                wrong.append((number, step))

    threads = [threading.Thread(target=use, args=(number,)) for number in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.ranks(2)
def test_tensors_stay_alive(ranks):
    """Tensors that the host forgets before the collective has run are not reused under it."""
    kept = []
    for step in range(200):
        tensor = torch.full((5000,), float(step), device="vdev")
        out = torch.empty(ranks.size * 5000, device="vdev")
        work = dist.all_gather_into_tensor(out, tensor, async_op=True)
        del tensor
        torch.full((5000,), -1.0, device="vdev")  # would land in the freed block
        work.wait()
        kept.append(out)
    for step, out in enumerate(kept):
        assert out.eq(step).all().item(), step


@pytest.mark.ranks(2)
@everywhere
def test_profiler(device):
    x = torch.ones(100, device=device)
    with torch.profiler.profile(record_shapes=True) as profile:
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        x.sum().item()
    names = {event.key for event in profile.key_averages()}
    assert "record_param_comms" in names and f"{backend_name()}:all_reduce" in names, names


@pytest.mark.ranks(2)
def test_introspection(ranks):
    group = dist.group.WORLD
    backend = group._get_backend(torch.device("vdev"))
    assert backend is group._get_backend(torch.device("cpu"))
    assert backend._get_backend_name() == backend_name() and dist.get_backend() == "vccl"
    assert backend.options._timeout.total_seconds() == GROUP_TIMEOUT
    assert list(backend.options.global_ranks_in_group) == list(range(ranks.size))
    assert backend._get_sequence_number_for_group() == 0
    dist.all_reduce(torch.ones(1))
    assert backend._get_sequence_number_for_group() == 1
    assert backend.get_error().name == "SUCCESS"

    import copy

    copied = copy.deepcopy(backend.options)
    assert type(copied) is type(backend.options) and copied.group_name == backend.options.group_name
