"""send, recv, isend, irecv and what is built of them, on cards and on the CPU, on one host and several."""

import datetime
import gc
import itertools
import os
import random
import threading
import time

import pytest
import torch
import torch.distributed as dist
from common import PATIENCE, every_place, everywhere, hear, meet, pairs_of_hosts, sync, tell

from vccl._device_type import backend_name

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int64,
    torch.uint16,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.complex64,
]
# Elements: none, one, what fits a line, what does not, and several MiB.
COUNTS = [0, 1, 7, 1000, 40_003, 1_500_000]


def filled(count, dtype, seed, device):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 120, (count,), generator=generator)
    return values.to(dtype).to(device)


def exchange_everything(rank, size, device):
    """Every rank with every other, each dtype and count: the calls that block, then those that do not."""
    for dtype, count in itertools.product(DTYPES, COUNTS):
        if count == COUNTS[-1] and dtype not in (torch.uint8, torch.float64):
            continue
        for source, destination in itertools.permutations(range(size), 2):
            seed = count + 10 * source + destination
            if rank == source:
                dist.send(filled(count, dtype, seed, device), destination)
            elif rank == destination:
                got = torch.zeros(count, dtype=dtype, device=device)
                assert dist.recv(got, source) == source
                assert torch.equal(got.cpu(), filled(count, dtype, seed, "cpu")), (dtype, count, source)
        mine = [filled(count, dtype, count + 10 * rank + other, device) for other in range(size)]
        got = [torch.zeros(count, dtype=dtype, device=device) for _ in range(size)]
        others = [other for other in range(size) if other != rank]
        works = [dist.isend(mine[other], other) for other in others]
        works += [dist.irecv(got[other], other) for other in reversed(others)]
        for work in works:
            work.wait()
        for other in others:
            expected = filled(count, dtype, count + 10 * other + rank, "cpu")
            assert torch.equal(got[other].cpu(), expected), (dtype, count, other)


@everywhere
@every_place
def test_exchange(rank_pool, size, hosts, device):
    rank_pool.run(size, exchange_everything, device, hosts=hosts)


def tags_out_of_order(rank, size, device, count):
    tags = list(range(20))
    if rank == 0:
        works = [dist.isend(torch.full((count,), float(tag), device=device), 1, tag=tag) for tag in tags]
    else:
        random.Random(5).shuffle(tags)
        got = [torch.zeros(count, device=device) for _ in tags]
        works = [dist.irecv(tensor, 0, tag=tag) for tensor, tag in zip(got, tags, strict=True)]
    for work in reversed(works):
        work.wait()
    if rank == 1:
        for tensor, tag in zip(got, tags, strict=True):
            assert tensor.eq(tag).all(), tag
    # The same tag: in the order of the calls, however long each is.
    lengths = [1, count, 3, 2 * count, 0, 5]
    if rank == 0:
        works = [dist.isend(torch.full((n,), float(i), device=device), 1) for i, n in enumerate(lengths)]
    else:
        got = [torch.zeros(n, device=device) for n in lengths]
        works = [dist.irecv(tensor, 0) for tensor in got]
    for work in works:
        work.wait()
    if rank == 1:
        for i, tensor in enumerate(got):
            assert tensor.eq(i).all(), i


@everywhere
@pairs_of_hosts
@pytest.mark.parametrize("count", [3, 70_001])
def test_tags(rank_pool, device, hosts, count):
    rank_pool.run(2, tags_out_of_order, device, count, hosts=hosts)


def cards_beside_the_cpu(rank, size):
    """A message of the CPU overtakes one of a card with the same tag, whose stream waits for a third one."""
    gate = torch.zeros(1, device="vdev")
    of_card, of_cpu = torch.zeros(9, device="vdev"), torch.zeros(5)
    if rank == 0:
        dist.irecv(gate, 1, tag=7).wait()  # the stream waits
        works = [dist.isend(of_card + 1, 1), dist.isend(of_cpu + 2, 1)]
    else:
        works = [dist.irecv(of_card, 0), dist.irecv(of_cpu, 0)]
        works[1].wait()
        dist.send(gate, 0, tag=7)
    for work in works:
        work.wait()
    if rank == 1:
        assert of_card.eq(1).all()
        assert of_cpu.eq(2).all()


@pairs_of_hosts
def test_messages_of_cards_and_of_the_cpu_do_not_meet(rank_pool, hosts):
    rank_pool.run(2, cards_beside_the_cpu, hosts=hosts)


def any_source(rank, size, device, count):
    rounds = 5
    if rank:
        for step in range(rounds):
            dist.send(torch.full((count,), float(10 * step + rank), device=device), 0, tag=step)
        dist.recv(torch.zeros(1, device=device), 0)
        return
    for step in range(rounds):
        sources = []
        for _ in range(size - 1):
            got = torch.zeros(count, device=device)
            source = dist.recv(got, tag=step)
            assert got.eq(10 * step + source).all(), (step, source)
            sources.append(source)
        assert sorted(sources) == list(range(1, size))
    for other in range(1, size):
        dist.send(torch.zeros(1, device=device), other)


@everywhere
@every_place
@pytest.mark.parametrize("count", [4, 200_000])
def test_any_source(rank_pool, size, hosts, device, count):
    rank_pool.run(size, any_source, device, count, hosts=hosts)


@pytest.mark.ranks(3)
@everywhere
def test_source_rank_is_of_the_group(ranks, device):
    group = dist.new_group([1, 2])
    if ranks.rank == 0:
        return
    x = torch.full((3,), float(ranks.rank), device=device)
    if ranks.rank == 2:
        dist.send(x, 1, group=group)
        return
    work = dist.irecv(x, group=group)
    work.wait()
    assert work._source_rank() == 1  # its rank in the group
    assert x.eq(2).all()


@pytest.mark.ranks(1, 2)
@everywhere
def test_to_itself(ranks, device):
    rank = ranks.rank
    for count in (0, 5, 300_000):
        sent, got = torch.full((count,), 7.0, device=device), torch.zeros(count, device=device)
        works = [dist.irecv(got, rank, tag=3), dist.isend(sent, rank, tag=3)]
        for work in works:
            work.wait()
        assert got.eq(7).all()
    with pytest.raises(ValueError):
        dist.send(got, rank)


def non_contiguous(rank, size, device):
    wide = torch.arange(600.0).view(20, 30)
    expected = wide.t().contiguous()
    if rank == 0:
        dist.send(wide.to(device).t(), 1)
        dist.send(wide.to(device)[:, ::3], 1)
        dist.send(wide.to(device)[0, 0].expand(5), 1)
        dist.send(torch.tensor(4.0, device=device), 1)
        return
    got = torch.zeros(30, 20, device=device)
    dist.recv(got, 0)
    assert torch.equal(got.cpu(), expected)
    columns = torch.full((20, 30), -1.0, device=device)
    dist.recv(columns[:, 2::3], 0)
    assert torch.equal(columns[:, 2::3].cpu(), wide[:, ::3])
    assert columns[:, :2].eq(-1).all() and columns[:, 3].eq(-1).all()
    dist.recv(got[0, :5], 0)
    assert got[0, :5].eq(0).all()
    zero_dim = torch.zeros((), device=device)
    dist.recv(zero_dim, 0)
    assert zero_dim.item() == 4
    with pytest.raises(ValueError, match="recv"):
        dist.irecv(torch.zeros(1, device=device).expand(5), 0)


@everywhere
@pairs_of_hosts
def test_non_contiguous(rank_pool, device, hosts):
    rank_pool.run(2, non_contiguous, device, hosts=hosts)


@pytest.mark.ranks(2)
@everywhere
def test_with_gradients(ranks, device):
    x = torch.ones(4, device=device, requires_grad=True)
    if ranks.rank == 0:
        dist.send(x, 1)
        dist.send(x * 3, 1)
    else:
        got = torch.zeros(4, device=device)
        dist.recv(got, 0)
        assert got.eq(1).all()
        leaf = torch.zeros(4, device=device, requires_grad=True)
        dist.recv(leaf, 0)
        assert leaf.eq(3).all() and leaf.requires_grad and leaf.is_leaf


@pytest.mark.ranks(2)
def test_in_stream_order(ranks):
    """A message is sent once the stream has come to it; what follows on the stream waits for its arrival."""
    open_late = threading.Event()
    x = torch.zeros(100_000, device="vdev")
    if ranks.rank == 0:
        torch.vdev._launch_host_func(lambda: open_late.wait(60))
        with_host_func = torch.full((100_000,), 5.0).pin_memory()
        x.copy_(with_host_func, non_blocking=True)
        work = dist.isend(x, 1, tag=1)
        later = dist.isend(x, 1, tag=2)
        assert not work.is_completed()
        tell("posted")
        hear("waiting")
        open_late.set()
        work.wait()
        later.wait()
    else:
        other = torch.zeros(100_000, device="vdev")
        works = [dist.irecv(other, 0, tag=2), dist.irecv(x, 0, tag=1)]
        hear("posted")
        assert not any(work.is_completed() for work in works)
        for work in works:
            work.wait()  # the stream waits, and not the host
        tell("waiting")
        assert x.eq(5).all() and other.eq(5).all()
    sync("vdev")


def beside_collectives(rank, size, device):
    """A collective does not wait for a message that was called before it, nor the other way round."""
    x, y = torch.ones(50_000, device=device), torch.full((50_000,), float(rank), device=device)
    dist.broadcast(x, 0)  # a card's communicator is made at its first collective, by all ranks, as NCCL's
    if rank == 0:
        reduced = dist.all_reduce(x, async_op=True)
        dist.isend(y, 1).wait()
        reduced.wait()
    else:
        dist.recv(y, 0)
        assert y.eq(0).all()
        dist.all_reduce(x)
    assert x.eq(2).all()
    # Both receive before either sends, with a collective in between.
    got = torch.zeros(50_000, device=device)
    receive = dist.irecv(got, 1 - rank)
    dist.all_reduce(x)
    dist.isend(y + 10, 1 - rank).wait()
    receive.wait()
    assert got.eq(10).all() and x.eq(4).all()
    assert dist.distributed_c10d._get_default_group()._get_sequence_number_for_group() == 3


@everywhere
@pairs_of_hosts
def test_beside_collectives(rank_pool, device, hosts):
    rank_pool.run(2, beside_collectives, device, hosts=hosts)


@pytest.mark.ranks(2)
@everywhere
def test_from_many_threads(ranks, device):
    rank = ranks.rank
    failures = []

    def talk(tag):
        try:
            # On one stream the threads would wait for each other's messages.
            torch.accelerator.set_device_index(rank)
            torch.accelerator.set_stream(torch.Stream(f"vdev:{rank}"))
            for step in range(10):
                x = torch.full((500 * tag + 1,), float(tag + step), device=device)
                got = torch.zeros_like(x)
                works = [dist.isend(x, 1 - rank, tag=tag), dist.irecv(got, 1 - rank, tag=tag)]
                for work in works:
                    work.wait()
                assert got.eq(tag + step).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@pytest.mark.ranks(2)
@everywhere
def test_handles(ranks, device):
    x = torch.full((1000,), 3.0 + ranks.rank, device=device)
    dist.all_reduce(x.clone())  # the group is put together at first use, which takes all ranks
    if ranks.rank == 0:
        hear("no message yet")
        work = dist.isend(x, 1)
        work.wait()
        assert work.get_future().wait() == []
    else:
        work = dist.irecv(x, 0)
        future = work.get_future()
        assert not work.is_completed()
        if device == "cpu":
            assert not future.done()
        tell("no message yet")
        again = future.then(lambda done: done.value()[0] + 1)
        assert future.wait()[0].eq(3).all()
        assert again.wait().eq(4).all()
        work.wait()
        assert work.result()[0].data_ptr() == x.data_ptr()
    sync(device)
    assert work.is_completed() and work.is_success()
    assert work._get_duration() >= 0
    # A future that nobody waits for holds nothing up.
    if ranks.rank == 1:
        dist.irecv(x, 0).get_future()
    else:
        dist.isend(x, 1).get_future()
    dist.barrier()


def objects(rank, size, device):
    sent = [{"a": list(range(1000))}, None, "text" * 5000]
    if rank == 0:
        dist.send_object_list(sent, 1, device=torch.device(device))
        dist.send_object_list(sent, 1, device=torch.device(device), use_batch=True)
    else:
        got = [None] * 3
        assert dist.recv_object_list(got, 0, device=torch.device(device)) == 0
        assert got == sent
        got = [None] * 3
        dist.recv_object_list(got, 0, device=torch.device(device), use_batch=True)
        assert got == sent


@everywhere
@pairs_of_hosts
def test_object_lists(rank_pool, device, hosts):
    rank_pool.run(2, objects, device, hosts=hosts)


@pytest.mark.ranks(2)
@everywhere
def test_profiler(ranks, device, tmp_path):
    x = torch.ones(64, device=device)
    dist.all_reduce(x)
    with torch.profiler.profile(record_shapes=True) as profile:
        if ranks.rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
    names = [event.name for event in profile.events()]
    path = tmp_path / f"rank_{ranks.rank}.json"
    profile.export_chrome_trace(str(path))
    text = path.read_text()
    operation, peer = ("send", '"Dst Rank": 1') if ranks.rank == 0 else ("recv", '"Src Rank": 0')
    assert f"{backend_name()}:{operation}" in names, names
    assert f'"Collective name": "{operation}"' in text and peer in text, text


def cycles_with_messages(rank, size, store, count):
    """Groups that have carried messages, batches and futures leave no thread, descriptor or mapping."""

    def cycle(number):
        dist.init_process_group("vccl", store=store, rank=rank, world_size=size)
        for device in ("vdev", "cpu"):
            x, got = torch.full((100_000,), float(rank), device=device), torch.zeros(100_000, device=device)
            ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            works = [dist.irecv(got, 1 - rank, tag=1), dist.isend(x, 1 - rank, tag=1)]
            futures = [work.get_future() for work in works]
            for work in works:
                work.wait()
            assert futures[0].wait()[0].eq(1 - rank).all()
            dist.irecv(got, tag=2)  # nobody sends it, so a synchronisation of the card would wait for it
            if device == "vdev":
                torch.vdev.current_stream().synchronize()
        # Whoever destroys the group with a message under way aborts it: no other rank may still begin one.
        meet(rank, size, dist.PrefixStore(f"cycle {number}", store))
        dist.distributed_c10d._get_default_group().set_timeout(datetime.timedelta(milliseconds=20))
        dist.destroy_process_group()

    def footprint():
        gc.collect()
        return {name: len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task")}

    for number in range(5):
        cycle(number)
    torch.vdev._launch_host_func(lambda: None)
    torch.vdev.synchronize()
    before = footprint()
    for number in range(5, 5 + count):
        cycle(number)

    def grown():
        return {name: count for name, count in footprint().items() if count > before[name]}

    # Threads that complete futures go after a few idle seconds.
    limit = time.monotonic() + PATIENCE.total_seconds() / 2
    while (more := grown()) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not more, (before, more)


@pairs_of_hosts
def test_cycles_leave_nothing(rank_pool, hosts):
    rank_pool.run(2, cycles_with_messages, 10, hosts=hosts, group=False)
