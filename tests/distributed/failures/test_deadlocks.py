"""Ranks that wait for each other in different calls learn so within moments; others are left alone."""

import datetime
import threading
import time

import pytest
import torch
import torch.distributed as dist
from common import PATIENCE, default_store
from torch.distributed import DistBackendError

# Long: an error within moments is not the timeout's.
TIMEOUT = 120


def raises_soon(call, *parts):
    """The error names each of `parts`."""
    begin = time.monotonic()
    with pytest.raises(DistBackendError) as info:
        call()
    assert time.monotonic() - begin < TIMEOUT / 3
    for part in parts:
        assert part in str(info.value), (part, str(info.value))


def name_of(group):
    """What errors call the group."""
    return group._get_backend(torch.device("cpu"))._group_name


def ones(device):
    return torch.ones(4, device=device)


@pytest.mark.ranks(2, group_timeout=TIMEOUT)
@pytest.mark.parametrize("blocks_by", ["item", "wait"])
@pytest.mark.parametrize("has_card_communicator", [True, False], ids=["used", "first"])
def test_a_cpu_tensor_here_and_a_cards_there(ranks, has_card_communicator, blocks_by):
    if has_card_communicator:
        dist.all_reduce(ones("vdev"))
    torch.accelerator.synchronize()

    def on_card():
        x = ones("vdev")
        if blocks_by == "wait":
            dist.all_reduce(x, async_op=True).wait()
            torch.accelerator.synchronize()
        else:
            dist.all_reduce(x)
            x[0].item()

    raises_soon(
        on_card if ranks.rank == 1 else lambda: dist.all_reduce(ones("cpu")),
        "rank 0: all_reduce(float32, 4 elements, SUM) on cpu, operation 1 of group ",
        "rank 1: all_reduce(float32, 4 elements, SUM) on vdev:1, operation 2 of group "
        if has_card_communicator
        else "rank 1: all_reduce on vdev:1, the first of group ",
    )


def crossed(rank, size, device, at_once):
    a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (a, b):
        dist.all_reduce(ones(device), group=group)
    torch.accelerator.synchronize()

    def call():
        x, y = ones(device), ones(device)
        dist.all_reduce(x, group=(a, b)[rank])
        if not at_once:
            x[0].item()
        dist.all_reduce(y, group=(b, a)[rank])
        y[0].item()

    where = ["cpu", "cpu"] if device == "cpu" else ["vdev:0", "vdev:1"]
    raises_soon(
        call,
        f"rank 0: all_reduce(float32, 4 elements, SUM) on {where[0]}, operation 2 of group {name_of(a)}",
        f"rank 1: all_reduce(float32, 4 elements, SUM) on {where[1]}, operation 2 of group {name_of(b)}",
    )


@pytest.mark.ranks(2, group_timeout=TIMEOUT)
@pytest.mark.parametrize(("device", "at_once"), [("cpu", False), ("vdev", False), ("vdev", True)])
def test_two_groups_in_crossed_order(ranks, device, at_once):
    crossed(ranks.rank, ranks.size, device, at_once)


@pytest.mark.ranks(3, group_timeout=TIMEOUT)
@pytest.mark.parametrize("device", ["cpu", "vdev"])
def test_three_groups_in_a_circle(ranks, device):
    pairs = [(0, 1), (1, 2), (0, 2)]
    groups = [dist.new_group(pair) for pair in pairs]
    for pair, group in zip(pairs, groups, strict=True):
        if ranks.rank in pair:
            dist.all_reduce(ones(device), group=group)
    torch.accelerator.synchronize()

    def call():
        x = ones(device)
        dist.all_reduce(x, group=groups[ranks.rank])  # with rank + 1
        x[0].item()

    # A rank does not know the name of the group that it is not in.
    own = [name_of(group) for pair, group in zip(pairs, groups, strict=True) if ranks.rank in pair]
    raises_soon(call, "rank 0: ", "rank 1: ", "rank 2: ", *(f"operation 2 of group {name}" for name in own))


def asynchronous_in_any_order(rank, size):
    a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
    x, y = ones("cpu"), ones("cpu")
    first = dist.all_reduce(x, group=(a, b)[rank], async_op=True)
    if rank == 0:
        time.sleep(3)
    second = dist.all_reduce(y, group=(b, a)[rank], async_op=True)
    first.wait()
    second.wait()
    assert x.eq(size).all().item() and y.eq(size).all().item()


def devices_in_any_order(rank, size):
    dist.all_reduce(ones("vdev"))
    x, y = ones("cpu"), ones("vdev")
    for _ in range(2):
        if rank == 0:
            work = dist.all_reduce(x, async_op=True)
            time.sleep(1.5)
            dist.all_reduce(y)
            y[0].item()
            work.wait()
        else:
            dist.all_reduce(y)
            dist.all_reduce(x)
            time.sleep(1.5)
    assert x.eq(size**2).all().item() and y.eq(size**2).all().item()


def a_busy_stream(rank, size):
    """The second operation is queued, behind work that ends, while both hosts wait in another order."""
    a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (a, b):
        dist.all_reduce(ones("vdev"), group=group)
    torch.accelerator.synchronize()
    x, y = ones("vdev"), ones("vdev")
    if rank == 0:
        with torch.vdev.stream(torch.Stream("vdev")):
            torch.vdev._sleep(3_000_000_000)
            behind = dist.all_reduce(x, group=a, async_op=True)
        dist.all_reduce(y, group=b)
        y[0].item()
        behind.wait()
    else:
        dist.all_reduce(x, group=a)
        x[0].item()
        dist.all_reduce(y, group=b)
    assert x.eq(size).all().item() and y.eq(size).all().item()


def a_thread_a_group(rank, size):
    a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
    x, y = ones("cpu"), ones("cpu")

    def later():
        time.sleep(3)
        dist.all_reduce(y, group=(b, a)[rank])

    thread = threading.Thread(target=later)
    thread.start()
    dist.all_reduce(x, group=(a, b)[rank])
    thread.join()
    assert x.eq(size).all().item() and y.eq(size).all().item()


def a_callback_goes_on(rank, size):
    """Rank 0 waits for what a callback of rank 1 begins, whose thread waits for something else."""
    a, b, c = (dist.new_group([0, 1]) for _ in range(3))
    x, y, z = ones("cpu"), ones("cpu"), ones("cpu")
    done = threading.Event()

    def go_on(future):
        time.sleep(2)
        dist.all_reduce(y, group=b)
        done.set()

    first = dist.all_reduce(x, group=a, async_op=True)
    if rank == 0:
        dist.all_reduce(y, group=b)
        dist.all_reduce(z, group=c)
    else:
        first.get_future().then(go_on)
        dist.all_reduce(z, group=c)
        done.wait()
    first.wait()
    assert all(t.eq(size).all().item() for t in (x, y, z))


def a_slow_rank(rank, size):
    groups = dist.new_group([0, 1]), dist.new_group([0, 1])
    for slow in range(size):
        for group in groups:
            if rank == slow:
                time.sleep(1.5)
            dist.all_reduce(ones("cpu"), group=group)


@pytest.mark.ranks(2, group_timeout=TIMEOUT)
@pytest.mark.parametrize(
    "program",
    [
        asynchronous_in_any_order,
        devices_in_any_order,
        a_busy_stream,
        a_thread_a_group,
        a_callback_goes_on,
        a_slow_rank,
    ],
)
def test_a_program_that_goes_on_is_left_alone(ranks, program):
    program(ranks.rank, ranks.size)


@pytest.mark.ranks(2, group_timeout=TIMEOUT)
def test_threads_that_never_call_are_no_way_out(ranks):
    """The feeder of a queue and idle threads of autograd are no way out."""
    import multiprocessing

    queue = multiprocessing.get_context("spawn").Queue()
    queue.put("something")
    weight = torch.ones(4, device="vdev", requires_grad=True)
    weight.sum().backward()
    try:
        crossed(ranks.rank, ranks.size, "cpu", at_once=False)
    finally:
        queue.close()
        queue.cancel_join_thread()


def a_thread_that_might_call(rank, size):
    over = threading.Event()
    threading.Thread(target=over.wait).start()
    a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
    store = default_store()
    # Rank 1 times out first, a while after rank 0 has called.
    b.set_timeout(datetime.timedelta(seconds=4))
    if rank == 1:
        store.wait(["rank 0 has called"], PATIENCE)
    try:
        work = dist.all_reduce(ones("cpu"), group=(a, b)[rank], async_op=True)
        store.set(f"rank {rank} has called", "")
        with pytest.raises(DistBackendError) as info:
            work.wait()
    finally:
        over.set()
    return f"{name_of(a)} {name_of(b)} {info.value}"


def test_a_timeout_names_both_calls_where_another_thread_might_go_on(rank_pool):
    text = rank_pool.run(2, a_thread_that_might_call, group_timeout=TIMEOUT)[1]
    a = text.split()[0]
    assert f"rank 0 waits in all_reduce(float32, 4 elements, SUM) on cpu, operation 1 of group {a}" in text
