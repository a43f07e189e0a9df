"""Collectives and messages of CPU tensors that lie in shared memory, on all ranks or on some."""

import contextlib
import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import vccl
from vccl import _C

SHARE = {"VCCL_SHARE_CPU": "1"}
COUNT = 100_003  # elements; several pages, and no round number of them
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


@contextlib.contextmanager
def sharing_ends():
    """The process serves for other tests, whose tensors are ordinary ones."""
    try:
        yield
    finally:
        _C._stop_sharing_cpu_memory()


def files_in_dev_shm():
    """Other tests that run at the same time may have files of torch there."""
    return [name for name in os.listdir("/dev/shm") if "vccl" in name]


def is_shared(tensor):
    return _C._is_shared_cpu_memory(tensor.untyped_storage().data_ptr())


def pages_of_peers():
    """Bytes of the peers' shared CPU memory that this process has touched where it has mapped it."""
    own = torch.empty(1 << 20)
    assert is_shared(own)
    total, counted = 0, False
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        if mapping := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            begin, end = (int(number, 16) for number in mapping.groups())
            counted = "/memfd:vccl-host" in line and not begin <= own.data_ptr() < end
        elif counted and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def values(count, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    return torch.randint(-8, 9, (count,), generator=generator).to(dtype)


def total(tensors):
    """The sum of small integers, exact in each dtype; "or" for bool."""
    if tensors[0].dtype == torch.bool:
        return torch.stack(tensors).any(0)
    return torch.stack([tensor.double() for tensor in tensors]).sum(0).to(tensors[0].dtype)


def each_collective(rank, size, dtype, make=values, empty=torch.empty):
    """Runs every collective and compares with what all ranks are known to have given."""
    given = [values(COUNT * size, dtype, seed) for seed in range(size)]
    parts = [list(tensor.chunk(size)) for tensor in given]
    mine, root = make(COUNT * size, dtype, rank), size - 1

    x = mine.clone()
    dist.all_reduce(x)
    assert x.equal(total(given)), "all_reduce"

    x = mine.clone()
    dist.reduce(x, root)
    if rank == root:
        assert x.equal(total(given)), "reduce"

    x = mine.clone()
    dist.broadcast(x, root)
    assert x.equal(given[root]), "broadcast"

    x = empty(COUNT * size * size, dtype=dtype)
    dist.all_gather_into_tensor(x, mine)
    assert x.equal(torch.cat(given)), "all_gather_into_tensor"

    several = [empty(COUNT * size, dtype=dtype) for _ in range(size)]
    dist.all_gather(several, mine)
    assert all(a.equal(b) for a, b in zip(several, given, strict=True)), "all_gather"

    x = empty(COUNT, dtype=dtype)
    dist.reduce_scatter_tensor(x, mine)
    assert x.equal(total([part[rank] for part in parts])), "reduce_scatter_tensor"

    x = empty(COUNT, dtype=dtype)
    dist.scatter(x, list(mine.chunk(size)) if rank == root else None, src=root)
    assert x.equal(parts[root][rank]), "scatter"

    several = [empty(COUNT * size, dtype=dtype) for _ in range(size)] if rank == root else None
    dist.gather(mine, several, dst=root)
    if rank == root:
        assert all(a.equal(b) for a, b in zip(several, given, strict=True)), "gather"

    x = empty(COUNT * size, dtype=dtype)
    dist.all_to_all_single(x, mine)
    assert x.equal(torch.cat([part[rank] for part in parts])), "all_to_all_single"

    # Rank r gives 10 elements to rank 0 and the rest to the others: some pieces are too small to be shared.
    splits = [10] + [(COUNT * size - 10) // (size - 1)] * (size - 1)
    splits[-1] += COUNT * size - sum(splits)
    x = empty(splits[rank] * size, dtype=dtype)
    dist.all_to_all_single(x, mine, [splits[rank]] * size, splits)
    assert x.equal(torch.cat([tensor.split(splits)[rank] for tensor in given])), "all_to_all, uneven"
    dist.barrier()


@pytest.mark.ranks(2, 3, env=SHARE)
def test_every_collective_reads_the_peers_memory_in_place(ranks):
    with sharing_ends():
        assert is_shared(torch.empty(COUNT))
        for dtype in DTYPES:
            each_collective(ranks.rank, ranks.size, dtype)
        dist.barrier()
        assert pages_of_peers() >= COUNT * 4


@pytest.mark.ranks(3, hosts=("a", "b", "a"), env=SHARE)
def test_ranks_on_two_hosts(ranks):
    with sharing_ends():
        for dtype in DTYPES:
            each_collective(ranks.rank, ranks.size, dtype)


def where_it_lies(rank, size, call):
    """How many bytes of the peers one collective touches that it has not touched before."""
    before = pages_of_peers()
    call()
    dist.barrier()
    return pages_of_peers() - before


def which_collectives(rank, size):
    with sharing_ends():
        touched = {}
        x, y = torch.ones(COUNT * size), torch.ones(COUNT)
        mine = dist.distributed_c10d._get_default_group()

        def measure(name, call):
            touched[name] = where_it_lies(rank, size, call)

        measure("all_reduce", lambda: dist.all_reduce(x, group=mine))
        fresh = torch.ones(COUNT * size)  # each time: pages that this rank has seen count once
        measure("broadcast", lambda: dist.broadcast(fresh, 0))
        assert is_shared(x) and is_shared(fresh) and is_shared(y)
        return touched


def test_a_collective_touches_pages_of_its_peers(rank_pool):
    """pages_of_peers() would also be above zero after a single collective: here each is looked at alone."""
    one, other = rank_pool.run(2, which_collectives, env=SHARE)
    for name in one:
        assert one[name] + other[name] >= COUNT * 4, name


def mixed(rank, size, plain):
    with sharing_ends():
        if rank in plain:
            _C._stop_sharing_cpu_memory()
        assert is_shared(torch.empty(COUNT)) == (rank not in plain)
        for dtype in DTYPES:
            each_collective(rank, size, dtype)


@pytest.mark.parametrize("size, plain", [(2, [0]), (2, [1]), (3, [1]), (3, [0, 2])])
def test_some_ranks_share_nothing(rank_pool, size, plain):
    rank_pool.run(size, mixed, plain, env=SHARE)


@pytest.mark.ranks(3, group=False)
def test_some_ranks_never_asked_for_it(ranks):
    rank, size = ranks.rank, ranks.size
    with sharing_ends():
        if rank != 1:
            vccl.share_cpu_memory()
        dist.init_process_group("vccl", store=ranks.store, rank=rank, world_size=size)
        for dtype in DTYPES:
            each_collective(rank, size, dtype)
        if rank != 1:
            assert is_shared(torch.empty(COUNT))


@pytest.mark.ranks(2, 3, env=SHARE)
def test_slices_and_tensors_made_before(ranks):
    rank, size = ranks.rank, ranks.size
    with sharing_ends():
        _C._stop_sharing_cpu_memory()
        before = torch.full((COUNT,), rank + 1.0)  # as if made before the sharing began
        vccl.share_cpu_memory()
        expected = float(sum(range(1, size + 1)))
        assert not is_shared(before)
        dist.all_reduce(before)
        assert before.eq(expected).all()

        def fresh():
            return torch.full((COUNT, 4), rank + 1.0)

        x = fresh()
        dist.all_reduce(x[1:-1])
        assert x[1:-1].eq(expected).all() and x[0].eq(rank + 1).all() and x[-1].eq(rank + 1).all()
        x = fresh()
        dist.all_reduce(x[:, 1])
        assert x[:, 1].eq(expected).all() and x[:, 0].eq(rank + 1).all() and x[:, 2].eq(rank + 1).all()
        x = fresh()
        dist.all_reduce(x.flatten()[3:50])  # few of a large one
        assert x.flatten()[3:50].eq(expected).all() and x.flatten()[50:].eq(rank + 1).all()
        # A large one on one rank only is a slice of ordinary memory on the others.
        plain = torch.from_numpy(fresh().numpy().copy())
        x = plain if rank else fresh()
        dist.all_reduce(x)
        assert x.eq(expected).all()
        # Input and output in different memory.
        out = torch.from_numpy(torch.zeros(size, COUNT, 4).numpy().copy())
        dist.all_gather_into_tensor(out.view(-1, 4), fresh())
        assert all(out[other].eq(other + 1).all() for other in range(size))
        # Resized: the memory moves.
        x = torch.ones(10).resize_(COUNT).fill_(rank + 1.0)
        assert is_shared(x)
        dist.all_reduce(x)
        assert x.eq(expected).all()
        # float64 at an address that is a multiple of 8 alone.
        x = torch.full((COUNT,), rank + 1.0, dtype=torch.float64)[1:]
        dist.all_reduce(x)
        assert x.eq(expected).all()


@pytest.mark.ranks(2, 3, env=SHARE)
def test_tensors_dropped_while_a_collective_runs(ranks):
    """The collective keeps the memory of tensors that nobody else has any more."""
    rank, size = ranks.rank, ranks.size
    with sharing_ends():
        assert is_shared(torch.empty(COUNT))
        outputs, works = [], []
        for step in range(30):
            out = torch.empty(size * COUNT)
            works.append(
                dist.all_gather_into_tensor(out, torch.full((COUNT,), 100.0 * step + rank), async_op=True)
            )
            torch.full((COUNT,), -1.0)  # in the place of one that went too early
            outputs.append(out)
        del out
        for work in works:
            work.wait()
        for step, out in enumerate(outputs):
            for other in range(size):
                assert out[other * COUNT : (other + 1) * COUNT].eq(100.0 * step + other).all(), (step, other)
        works = [dist.all_reduce(torch.full((COUNT,), float(step)), async_op=True) for step in range(30)]
        for work in works:
            work.wait()


def messages(rank, size, plain):
    with sharing_ends():
        if rank in plain:
            _C._stop_sharing_cpu_memory()
        for count in (10, COUNT, 1_500_000):
            for source in range(size):
                for destination in range(size):
                    if source == destination:
                        continue
                    seed = 10 * source + destination
                    if rank == source:
                        dist.send(values(count, torch.float32, seed), destination)
                    elif rank == destination:
                        got = torch.zeros(count)
                        dist.recv(got, source)
                        assert got.equal(values(count, torch.float32, seed)), (count, source)
        # Sent and dropped: kept until it was taken.
        works = [
            dist.isend(torch.full((COUNT,), 10.0 * step + rank), (rank + 1) % size) for step in range(10)
        ]
        torch.full((COUNT,), -1.0)
        for step in range(10):
            got = torch.zeros(COUNT)
            dist.recv(got, (rank - 1) % size)
            assert got.eq(10.0 * step + (rank - 1) % size).all()
        for work in works:
            work.wait()
        dist.barrier()
        return None if plain else pages_of_peers()


@pytest.mark.parametrize("size, plain", [(2, []), (3, []), (2, [0]), (3, [1])])
def test_messages(rank_pool, size, plain):
    for touched in rank_pool.run(size, messages, plain, env=SHARE):
        assert touched is None or touched >= 1_500_000 * 4


def too_late(rank, size):
    with sharing_ends():
        with pytest.raises(RuntimeError, match=r"before init_process_group\(\), or set VCCL_SHARE_CPU=1"):
            vccl.share_cpu_memory()
        assert not is_shared(torch.empty(COUNT))
        x = torch.ones(COUNT)
        dist.all_reduce(x)
        assert x.eq(size).all()
        pid = os.fork()
        if pid == 0:  # has no group
            with contextlib.suppress(BaseException):
                vccl.share_cpu_memory()
                os._exit(0 if is_shared(torch.empty(COUNT)) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def in_time(rank, size, store):
    with sharing_ends():
        for number in range(3):  # one after the other: the memory is handed to each
            vccl.share_cpu_memory()
            dist.init_process_group(
                "vccl", store=dist.PrefixStore(str(number), store), rank=rank, world_size=size
            )
            vccl.share_cpu_memory()
            x = torch.ones(COUNT)
            assert is_shared(x)
            dist.all_reduce(x)
            assert x.eq(size).all()
            subgroup = dist.new_group([0, 1])
            dist.all_reduce(x, group=subgroup)
            assert x.eq(size * size).all()
            dist.destroy_process_group()
        return files_in_dev_shm()


def test_before_and_after_the_group(fresh_ranks):
    fresh_ranks.run(2, too_late)
    assert fresh_ranks.run(2, in_time, group=False) == [[], []]


@pytest.fixture
def fresh_ranks(rank_pool):
    """Processes that have never shared anything, and that no other test uses."""
    rank_pool.renew()
    yield rank_pool
    rank_pool.renew()


def bad_value(rank, size, store):
    with pytest.raises(ValueError, match='VCCL_SHARE_CPU is "2"; allowed are 0 and 1'):
        dist.init_process_group("vccl", store=store, rank=rank, world_size=size)


def test_a_bad_value(fresh_ranks):
    fresh_ranks.run(1, bad_value, group=False, env={"VCCL_SHARE_CPU": "2"})


@pytest.mark.ranks(2, group=False)
def test_groups_leave_nothing_behind(ranks):
    def counts():
        maps = pathlib.Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/fd")), maps.count("memfd:vccl-host"), files_in_dev_shm()

    with sharing_ends():
        vccl.share_cpu_memory()
        seen = []
        for number in range(6):
            prefix = dist.PrefixStore(str(number), ranks.store)
            dist.init_process_group("vccl", store=prefix, rank=ranks.rank, world_size=ranks.size)
            x = torch.ones(COUNT)
            dist.all_reduce(x)
            dist.destroy_process_group()
            seen.append(counts())
        assert seen[-1] == seen[1], seen
        assert seen[-1][1] == 1, "the peer's memory is still mapped"


@pytest.mark.ranks(2, env=SHARE)
def test_a_forked_child_of_a_rank(ranks):
    """A child of a rank writes to what it inherited; neither its parent nor the peers see it."""
    with sharing_ends():
        x = torch.ones(COUNT)
        dist.all_reduce(x)
        pid = os.fork()
        if pid == 0:
            try:
                ok = bool(x.eq(ranks.size).all())
                x.fill_(-1.0)
                os._exit(0 if ok and not is_shared(torch.ones(COUNT)) else 1)
            except BaseException:
                os._exit(2)
        dist.all_reduce(x)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert x.eq(ranks.size**2).all()
        dist.all_reduce(x)
        assert x.eq(ranks.size**3).all()
        assert pages_of_peers() > 0


FORKED_RANKS = """
import multiprocessing, sys
import torch, torch.distributed as dist
from vccl import _C
torch.set_num_threads(1)
def main(rank, path, inherited):
    dist.init_process_group("vccl", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    x = torch.full((100_000,), rank + 1.0)
    assert _C._is_shared_cpu_memory(x.data_ptr())
    dist.all_reduce(x)
    assert x.eq(3).all()
    dist.all_reduce(inherited)
    assert inherited.eq(14).all()
    dist.destroy_process_group()
tensor = torch.full((100_000,), 7.0)
assert _C._is_shared_cpu_memory(tensor.data_ptr())
fork = multiprocessing.get_context("fork")
ranks = [fork.Process(target=main, args=(rank, sys.argv[1], tensor)) for rank in range(2)]
for rank in ranks: rank.start()
for rank in ranks: rank.join(300)
assert [rank.exitcode for rank in ranks] == [0, 0]
assert tensor.eq(7).all()
"""


def test_ranks_that_are_forked(tmp_path):
    """They share memory of their own; what they inherited is theirs alone, and staged."""
    result = subprocess.run(
        [sys.executable, "-c", FORKED_RANKS, str(tmp_path / "store")],
        env={**os.environ, **SHARE, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr


WIDTH, STEPS = 300, 4


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))


def batch(step, rank):
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def train_with_ddp(rank, size):
    with sharing_ends():
        model = DistributedDataParallel(net(), gradient_as_bucket_view=True)
        assert all(is_shared(p) for p in model.parameters() if p.dim() == 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            model(batch(step, rank)).square().mean().backward()
            optimizer.step()
        return [p.detach().numpy() for p in model.parameters()], pages_of_peers()


@pytest.mark.parametrize("size", [2, 3])
def test_ddp(rank_pool, size):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.cat([batch(step, rank) for rank in range(size)])).square().mean().backward()
        optimizer.step()
    answers = rank_pool.run(size, train_with_ddp, env=SHARE)
    # Where ranks outnumber cores, one may find every time that the others have done its share.
    assert sum(touched for _, touched in answers) > 0
    for parameters, _ in answers:
        for found, expected in zip(parameters, model.parameters(), strict=True):
            torch.testing.assert_close(torch.from_numpy(found), expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.ranks(2, env=SHARE)
def test_beside_cards(ranks):
    rank, size = ranks.rank, ranks.size
    with sharing_ends():
        x, y = torch.ones(COUNT), torch.ones(COUNT, device="vdev")
        for _ in range(5):
            dist.all_reduce(x)
            dist.all_reduce(y)
        assert x.eq(size**5).all() and y.cpu().eq(size**5).all()
        assert (y + 1).cpu().eq(size**5 + 1).all()
        got = torch.empty(COUNT, device="vdev")
        if rank == 0:
            dist.send(y, 1)
        elif rank == 1:
            dist.recv(got, 0)
            assert got.cpu().eq(size**5).all()
