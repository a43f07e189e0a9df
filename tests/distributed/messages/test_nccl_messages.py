"""Messages of strict groups: two ranks meet before their first one, and NCCL's buffers hold small sends."""

import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from common import backend_of, default_store, hear, tell
from gate import Gate

STRICT = {"VCCL_STRICT": "nccl"}
MIB = 1 << 20


def card_of(rank):
    torch.accelerator.set_device_index(rank)
    return torch.device("vdev", rank)


def tensor(card, megabytes, value):
    return torch.full((int(megabytes * MIB / 4),), float(value), device=card)


def connect(rank, card):
    """Makes the first message of two ranks, in which they meet."""
    x = tensor(card, 1, 0)
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
    torch.vdev.synchronize()


def wait_until(holds):
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until, "the send has not completed"
        time.sleep(0.001)


def both_send_first(rank, size):
    card = card_of(rank)
    for number, bytes_ in enumerate((4, 4096, 64 << 10, 3 * MIB, 4 * MIB)):
        x = torch.full((bytes_ // 4,), 10.0 * number + rank, device=card)
        y = torch.empty_like(x)
        dist.send(x, 1 - rank)
        x.fill_(-1)
        dist.recv(y, 1 - rank)
        assert y.eq(10.0 * number + 1 - rank).all()


def both_send_batches_first(rank, size):
    card = card_of(rank)
    xs = [tensor(card, 1, 10 * rank + number) for number in range(4)]
    ys = [torch.empty_like(x) for x in xs]
    for call, tensors in ((dist.isend, xs), (dist.irecv, ys)):
        for work in dist.batch_isend_irecv([dist.P2POp(call, each, 1 - rank) for each in tensors]):
            work.wait()
        for x in xs:
            x.fill_(-1)
    assert [y.unique().item() for y in ys] == [10 * (1 - rank) + number for number in range(4)]


def both_send_transposed_first(rank, size):
    x = torch.arange(6.0, device=card_of(rank)).reshape(2, 3) + 10 * rank
    y = torch.empty_like(x)
    dist.send(x.t(), 1 - rank)
    dist.recv(y, 1 - rank)
    assert y.equal(x - 10 * rank + 10 * (1 - rank))


@pytest.mark.parametrize("both", [both_send_first, both_send_batches_first, both_send_transposed_first])
@pytest.mark.parametrize("hosts", [1, 2])
def test_two_ranks_that_send_first(rank_pool, both, hosts):
    rank_pool.run(2, both, env=STRICT, hosts=hosts)


def sends_what_is_there_in_the_order_of_the_stream(rank, size):
    x = tensor(card_of(rank), 1, 0)
    if rank == 1:
        dist.recv(x, 0)
        assert x.eq(2).all()
        return
    with Gate() as gate:
        x.fill_(2)
        work = dist.isend(x, 1)
        assert not work.is_completed()
        work.wait()
        x.fill_(3)
        gate.open()
    assert x.eq(3).all()


def test_the_order_of_the_stream(rank_pool):
    rank_pool.run(2, sends_what_is_there_in_the_order_of_the_stream, env=STRICT)


def fills_the_buffers(rank, size):
    card = card_of(rank)
    xs = [tensor(card, 3, number) for number in range(3)]
    connect(rank, card)
    if rank == 1:
        hear("two are under way")
        for number, x in enumerate(xs):
            dist.recv(x, 0)
            assert x.eq(number).all()
            tell(f"{number} has come")
        return
    allocated, stats = torch.vdev.memory_allocated(), torch.vdev.memory_stats()
    first, second = dist.isend(xs[0], 1), dist.isend(xs[1], 1)
    wait_until(first.is_completed)
    torch.vdev.current_stream().synchronize()
    assert not second.is_completed()
    assert torch.vdev.memory_allocated() == allocated
    assert torch.vdev.memory_stats()["allocated_bytes.all.peak"] == stats["allocated_bytes.all.peak"]
    tell("two are under way")
    for number in range(2):
        hear(f"{number} has come")
    third = dist.isend(xs[2], 1)
    for work in (second, third):
        wait_until(work.is_completed)


def test_a_send_that_the_buffers_have_no_room_for_waits_for_its_receive(rank_pool):
    rank_pool.run(2, fills_the_buffers, env=STRICT)


def exchange_ahead(rank, size, megabytes, count):
    card = card_of(rank)
    xs = [tensor(card, megabytes, 1000 * rank + number) for number in range(count)]
    ys = [torch.empty_like(x) for x in xs]
    for x, y in zip(xs, ys, strict=True):
        dist.send(x, 1 - rank)
        x.fill_(-1)
        dist.recv(y, 1 - rank)
    assert [y[0].item() for y in ys] == [1000 * (1 - rank) + number for number in range(count)]


@pytest.mark.parametrize(("megabytes", "count"), [(3, 6), (1 / 16, 200)])
def test_a_host_that_runs_ahead(rank_pool, megabytes, count):
    """Whether a send fits is known when its turn comes, and not at its call."""
    rank_pool.run(2, exchange_ahead, megabytes, count, env=STRICT)


def all_send_first(rank, size, bound):
    card = card_of(rank)
    others = [other for other in range(size) if other != rank]
    xs = {other: tensor(card, 3, 10 * rank + other) for other in others}
    ys = {other: torch.empty_like(x) for other, x in xs.items()}
    for call, tensors in ((dist.isend, xs), (dist.irecv, ys)):
        if bound:
            works = [call(tensors[other], other) for other in others]
        else:
            works = dist.batch_isend_irecv([dist.P2POp(call, tensors[other], other) for other in others])
        for work in works:
            work.wait()
    assert all(y.eq(10 * other + rank).all() for other, y in ys.items())


def bound_ranks_send_first(rank, size, store):
    dist.init_process_group("vccl", store=store, rank=rank, world_size=size, device_id=card_of(rank))
    all_send_first(rank, size, True)


def test_each_connection_has_a_buffer(rank_pool):
    rank_pool.run(3, all_send_first, False, env=STRICT)
    rank_pool.run(3, bound_ranks_send_first, env=STRICT, group=False)


def batches_of_both(rank, size):
    """The sends of a batch are buffered, although the batch waits for its receive."""
    card = card_of(rank)
    x, y, z = (tensor(card, 1, rank) for _ in range(3))
    dist.barrier()

    def batch(*calls):
        for work in dist.batch_isend_irecv([dist.P2POp(call, each, peer) for call, each, peer in calls]):
            work.wait()

    if rank == 0:
        batch((dist.isend, x, 1), (dist.irecv, y, 1))
        batch((dist.isend, x, 2))
    elif rank == 1:
        batch((dist.isend, x, 0), (dist.irecv, y, 2))
        batch((dist.irecv, z, 0))
    else:
        batch((dist.irecv, y, 0))
        batch((dist.isend, x, 1))
    torch.vdev.synchronize()


def test_batches_with_receives(rank_pool):
    rank_pool.run(3, batches_of_both, env=STRICT)


def leaves_without_the_message(rank, size):
    card = card_of(rank)
    x, y = tensor(card, 1, rank), tensor(card, 1, -1)
    for first, second in ((0, 1), (0, 2)):
        if rank == first:
            dist.send(x, second)
        elif rank == second:
            dist.recv(y, first)
    torch.vdev.synchronize()
    if rank == 0:
        dist.send(x, 1)
        torch.vdev.synchronize()
        tell("sent")
    hear("sent")
    if rank == 1:
        store = default_store()
        dist.destroy_process_group()
        store.set("has left", "")
        return
    hear("has left")
    if rank == 0:
        dist.send(x, 2)
    else:
        dist.recv(y, 0)
        assert y.eq(0).all()
    torch.vdev.synchronize()


def test_a_receiver_may_leave_without_a_message(rank_pool):
    rank_pool.run(3, leaves_without_the_message, env=STRICT)


def wait_beside_a_copy(rank, size):
    card = card_of(rank)
    x, y = tensor(card, 1, rank), tensor(card, 1, -1)
    for first, second in ((0, 1), (0, 2)):
        if rank == first:
            dist.send(x, second)
        elif rank == second:
            dist.recv(y, first)
    torch.vdev.synchronize()
    if rank == 2:
        hear("0 knows")
        hear("1 knows")
        return
    if rank == 0:
        dist.send(x, 2)
    with pytest.raises(dist.DistBackendError, match=r"wait for each other .*recv from rank"):
        dist.irecv(y, 1 - rank).wait()
        torch.vdev.synchronize()
    tell(f"{rank} knows")


def test_a_copy_under_way_hides_no_deadlock(rank_pool):
    rank_pool.run(3, wait_beside_a_copy, env=STRICT)


def receives_another_size(rank, size):
    card = card_of(rank)
    connect(rank, card)
    if rank == 1:
        hear("sent")
        with pytest.raises(dist.DistBackendError, match=r"rank 0 sent .*262144 elements.* to rank 1"):
            dist.irecv(tensor(card, 2, 0), 0).wait()
            torch.vdev.synchronize()
        tell("raised")
        return
    dist.send(tensor(card, 1, 1), 1)
    torch.vdev.synchronize()
    tell("sent")
    hear("raised")
    with pytest.raises(dist.DistBackendError, match=r"rank 0 sent .*but rank 1 received"):
        dist.recv(tensor(card, 1, 1), 1)
        torch.vdev.synchronize()
    backend_of().abort()


def test_a_mismatch_is_raised_by_the_receiver_and_the_senders_next_operation(rank_pool):
    rank_pool.run(2, receives_another_size, env=STRICT)


def waits_for_room_in_vain(rank, size, how):
    card = card_of(rank)
    connect(rank, card)
    if rank == 1:
        hear("sent")
        if how == "leaves":
            dist.destroy_process_group()
        elif how == "names another size":
            with pytest.raises(dist.DistBackendError, match=r"rank 0 sent .*, but rank 1 received"):
                dist.recv(tensor(card, 1, 0), 0)
                torch.vdev.synchronize()
        return
    if how == "is late":
        backend_of()._set_default_timeout(timedelta(milliseconds=300))
    works = [dist.isend(tensor(card, 3, number), 1) for number in range(2)]
    works[0].wait()
    torch.vdev.current_stream().synchronize()
    tell("sent")
    if how == "is aborted":
        backend_of().abort()
    with pytest.raises(dist.DistBackendError):
        works[1].wait()
        torch.vdev.synchronize()
    assert works[1].is_completed() and not works[1].is_success()
    assert works[0].is_success()


@pytest.mark.parametrize("how", ["leaves", "names another size", "is late", "is aborted"])
def test_a_send_that_waits_for_room_fails_with_its_group(rank_pool, how):
    """The copy before it fails, too, and makes no room."""
    rank_pool.run(2, waits_for_room_in_vain, how, env=STRICT)


def both_send_many(rank, size, count):
    card = card_of(rank)
    connect(rank, card)
    xs = [torch.full((16 << 10,), 10.0 * number + rank, device=card) for number in range(count)]
    ys = [torch.empty_like(x) for x in xs]
    for x in xs:
        dist.send(x, 1 - rank)
    for y in ys:
        dist.recv(y, 1 - rank)
    assert all(y.eq(10.0 * number + 1 - rank).all() for number, y in enumerate(ys))


def both_send_too_many(rank, size):
    with pytest.raises(dist.DistBackendError, match=r"wait for each other"):
        both_send_many(rank, size, 9)
    backend_of().abort()


def test_a_connection_holds_eight_messages(rank_pool):
    rank_pool.run(2, both_send_many, 8, env=STRICT)
    rank_pool.run(2, both_send_too_many, env=STRICT)


def ring_of_first_messages(rank, size):
    x = tensor(card_of(rank), 1, rank)
    with pytest.raises(dist.DistBackendError, match=r"wait for each other .* greeting that two"):
        dist.isend(x, (rank + 1) % size)
    backend_of().abort()


def test_a_ring_of_first_messages_waits_for_itself(rank_pool):
    rank_pool.run(3, ring_of_first_messages, env=STRICT)


def sends_before_a_barrier(rank, size):
    x = tensor(card_of(rank), 1, rank)
    dist.all_reduce(x)
    with pytest.raises(dist.DistBackendError, match=r"wait for each other .*barrier"):
        if rank == 0:
            dist.send(x, 1)
        dist.barrier()
    backend_of().abort()


def test_a_first_send_before_a_barrier_that_its_receive_is_behind(rank_pool):
    rank_pool.run(2, sends_before_a_barrier, env=STRICT)


def sends_alone(rank, size):
    x = tensor(card_of(rank), 1, rank)
    if rank == 0:
        late = "rank 0 waited 100 ms for rank 1 to send the greeting that two ranks exchange"
        backend_of()._set_default_timeout(timedelta(milliseconds=100))
        with pytest.raises(dist.DistBackendError, match=late):
            dist.send(x, 1)
        tell("is late")
    else:
        hear("is late")
    backend_of().abort()


def test_a_first_send_whose_peer_does_not_come(rank_pool):
    rank_pool.run(2, sends_alone, env=STRICT)


def first_messages_of_threads(rank, size):
    card = card_of(rank)
    ys = [torch.zeros(4, device=card) for _ in range(4)]

    def exchange(number):
        torch.accelerator.set_device_index(rank)
        if rank == 0:
            dist.send(torch.full((4,), 1.0, device=card), 1)
        else:
            dist.recv(ys[number], 0)

    threads = [threading.Thread(target=exchange, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.vdev.synchronize()
    assert all(y.eq(float(rank)).all() for y in ys)


def test_threads_meet_a_peer_together(rank_pool):
    rank_pool.run(2, first_messages_of_threads, env=STRICT)
