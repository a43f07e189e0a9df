"""Subgroups and meshes, each with communicators of its own; a group's options, what it offers, its end."""

import copy
import datetime
import threading

import pytest
import torch
import torch.distributed as dist
from common import PATIENCE, backend_of, bind, default_store, everywhere, meet, total, total_of
from torch._C._distributed_c10d import ErrorType
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import vccl
from vccl._device_type import backend_name
from vccl.testing import GROUP_TIMEOUT

# --- worlds of one, and subgroups


@pytest.mark.ranks(1)
@everywhere
def test_world_of_one(ranks, device):
    x = torch.arange(5.0, device=device)
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        y = x.clone()
        dist.all_reduce(y, op)
        assert torch.equal(y, x)
    y = x.clone()
    work = dist.broadcast(y, 0, async_op=True)
    work.wait()
    assert torch.equal(y, x) and work.get_future().wait()[0] is not None
    parts = [torch.empty_like(x)]
    dist.all_gather(parts, x)
    assert torch.equal(parts[0], x)
    whole = torch.empty_like(x)
    dist.all_gather_into_tensor(whole, x)
    dist.reduce_scatter_tensor(y, x)
    assert torch.equal(whole, x) and torch.equal(y, x)
    dist.barrier()
    objects = [None]
    dist.all_gather_object(objects, {"rank": ranks.rank})
    assert objects == [{"rank": 0}]
    assert total(dist.new_group([0]), device) == 1


@pytest.mark.ranks(3)
@everywhere
def test_subgroups(ranks, device):
    rank, size = ranks.rank, ranks.size
    members = [[0, 2], [1, 2], [1], [0, 1, 2]]
    groups = [dist.new_group(theirs) for theirs in members]
    for theirs, group in zip(members, groups, strict=True):
        if rank not in theirs:
            assert group == dist.GroupMember.NON_GROUP_MEMBER
            continue
        assert group.size() == len(theirs) and dist.get_process_group_ranks(group) == theirs
        assert dist.get_group_rank(group, rank) == group.rank() == theirs.index(rank)
        assert total(group, device) == total_of(theirs)
        x = torch.full((7,), float(rank), device=device)
        dist.broadcast(x, theirs[-1], group=group)
        assert (x == theirs[-1]).all().item()
    assert total(None, device) == total_of(range(size))


@pytest.mark.ranks(2)
def test_operation_on_a_group_one_is_not_in(ranks):
    group = dist.new_group([0])
    x = torch.ones(3)
    if ranks.rank == 0:
        dist.all_reduce(x, group=group)
        assert (x == 1).all()
    else:
        with pytest.warns(UserWarning, match="does not belong to"):
            assert dist.all_reduce(x, group=group) is None
        with pytest.raises(ValueError, match=r"not part of group|not registered|Invalid"):
            dist.get_group_rank(group, 1)
    # Rank 1 has been nowhere: the default group is as it was.
    assert total(None, "cpu") == 3


@pytest.mark.ranks(3)
@everywhere
def test_many_groups_in_any_order(ranks, device):
    """Groups with the same ranks, used in another order on every rank.

    Each has a communicator and a stream of its own, so none waits for another.
    """
    rank, size = ranks.rank, ranks.size
    count = 6
    groups = [dist.new_group() for _ in range(count)]
    xs = [torch.full((1000 + 77 * i,), float(rank + i), device=device) for i in range(count)]
    order = list(range(count)) if rank == 0 else list(reversed(range(count)))
    if rank == 2:
        order = order[1:] + order[:1]
    works = {}
    # The communicators are made in the same order: making one takes all ranks.
    for group in groups:
        dist.all_reduce(torch.ones(1, device=device), group=group)
    for _ in range(3):
        for i in order:
            works[i] = dist.all_reduce(xs[i], group=groups[i], async_op=True)
    for work in works.values():
        work.wait()
    for i, x in enumerate(xs):
        once = sum(other + i for other in range(size))
        assert (x == once * size * size).all().item(), i


@pytest.mark.ranks(2)
@everywhere
def test_a_thread_for_each_group(ranks, device):
    """A thread and a stream for each group."""
    count = 5
    groups = [dist.new_group() for _ in range(count)]
    results = [None] * count

    def use(i):
        torch.accelerator.set_device_index(ranks.rank)
        with torch.vdev.stream(torch.vdev.Stream()):
            x = torch.full((500,), float(ranks.rank), device=device)
            for _ in range(10):
                dist.all_reduce(x, dist.ReduceOp.MAX, group=groups[i])
                x += i
            results[i] = x.cpu()

    threads = [threading.Thread(target=use, args=(i,)) for i in range(count)]
    for thread in threads if ranks.rank == 0 else reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()
    for i, result in enumerate(results):
        assert result is not None and (result == ranks.size - 1 + 10 * i).all(), i


# --- bound devices and meshes


@pytest.mark.ranks(2, group=False)
def test_bound_device_connects_at_init(ranks):
    """With device_id the ranks meet in init_process_group, and it tells when one does not come."""
    if ranks.rank == 1:
        ranks.store.wait(["told"], PATIENCE)
        return
    with pytest.raises(dist.DistBackendError, match=r"rank 1 did not join group .* within .*1 s"):
        bind(ranks.rank, ranks.size, ranks.store, timeout=datetime.timedelta(seconds=1))
    assert not dist.is_initialized()
    ranks.store.set("told", "")


@pytest.mark.ranks(3, group=False)
def test_subgroups_with_a_bound_device(ranks):
    bind(ranks.rank, ranks.size, ranks.store)
    for members in ([0, 1], [2], [1, 2], [0, 1, 2]):
        group = dist.new_group(members)
        if ranks.rank in members:
            assert total(group, "vdev") == total_of(members)
            assert total(group, "cpu") == total_of(members)
    subgroup, _ = dist.new_subgroups_by_enumeration([[0, 2], [1]])
    assert total(subgroup, "vdev") == (2 if ranks.rank == 1 else 4)


@pytest.mark.ranks(4, group=False)
@pytest.mark.parametrize("bound", [True, False], ids=["bound", "unbound"])
def test_device_mesh(ranks, bound):
    rank, size = ranks.rank, ranks.size
    if bound:
        bind(rank, size, ranks.store)
    else:
        dist.init_process_group("vccl", store=ranks.store, rank=rank, world_size=size)
    mesh = init_device_mesh("vdev", (2, 2), mesh_dim_names=("rows", "columns"))
    rows, columns = mesh["rows"].get_group(), mesh["columns"].get_group()
    assert dist.get_process_group_ranks(columns) == ([0, 1] if rank < 2 else [2, 3])
    assert dist.get_process_group_ranks(rows) == ([0, 2] if rank % 2 == 0 else [1, 3])
    assert tuple(mesh.get_coordinate()) == (rank // 2, rank % 2)
    for group in (rows, columns):
        assert backend_of(group).name() == backend_name()
        assert total(group, "vdev") == total_of(dist.get_process_group_ranks(group))
    flat = mesh["rows", "columns"]._flatten("all")
    assert flat.size() == 4 and total(flat.get_group(), "vdev") == 10
    assert torch.accelerator.current_device_index() == rank
    # A mesh over some of the ranks.
    pair = DeviceMesh("vdev", [1, 3])
    if rank in (1, 3):
        assert total(pair.get_group(), "vdev") == total_of([1, 3])
    # Both dimensions at once: a sum along each is the sum over all.
    x = torch.full((8,), rank + 1.0, device="vdev")
    dist.all_reduce(x, group=rows)
    dist.all_reduce(x, group=columns)
    assert (x == 10).all().item()


# --- what a group says of itself, its options and its end


@pytest.mark.ranks(2)
def test_what_is_supported(ranks):
    rank = ranks.rank
    backend = backend_of(None)
    assert backend.supports_splitting and backend.supports_shrinking
    assert backend.supports_tensor_alloc(torch.device("vdev", rank))
    assert not backend.supports_tensor_alloc(torch.device("vdev", torch.vdev.device_count()))
    x = backend.allocate_tensor(12, dtype=torch.bfloat16, device=torch.device("vdev", rank))
    assert x.shape == (12,) and x.dtype == torch.bfloat16 and x.device == torch.device("vdev", rank)
    x.fill_(rank + 1)
    dist.all_reduce(x)
    assert (x == 3).all().item()
    with pytest.raises(ValueError, match="on cards, and not on cpu"):
        backend.allocate_tensor(12, dtype=torch.float32, device=torch.device("cpu"))
    backend.perform_nocolor_split(torch.device("vdev", rank))


@pytest.mark.torch("<2.15", "later versions give the question a private name")
@pytest.mark.ranks(2)
def test_time_is_not_estimated(ranks):
    assert not backend_of(None).supports_time_estimate


@pytest.mark.ranks(2)
def test_options(ranks):
    options = vccl.Options(is_high_priority_stream=True)
    options._timeout = datetime.timedelta(seconds=41)
    options.global_ranks_in_group = [0, 1]
    for twin in (copy.deepcopy(options), copy.copy(options)):
        assert isinstance(twin, vccl.Options) and twin is not options
        assert twin.is_high_priority_stream and twin._timeout == datetime.timedelta(seconds=41)
        twin.is_high_priority_stream = False
        twin._timeout = datetime.timedelta(seconds=2)
        assert options.is_high_priority_stream and options._timeout == datetime.timedelta(seconds=41)
    assert options.backend == "vccl"
    # One object for two groups: neither writes into it.
    pair = dist.new_group(timeout=datetime.timedelta(seconds=500), pg_options=options)
    single = dist.new_group([ranks.rank], pg_options=options, use_local_synchronization=True)
    assert options._timeout == datetime.timedelta(seconds=41) and options.group_name == ""
    assert backend_of(pair).options.global_ranks_in_group == [0, 1]
    assert backend_of(pair).options._timeout == datetime.timedelta(seconds=500)
    assert backend_of(single).options.global_ranks_in_group == [ranks.rank]
    assert total(pair, "vdev") == 3 and total(single, "vdev") == ranks.rank + 1


@pytest.mark.ranks(2)
@pytest.mark.parametrize("way", ["group", "backend", "operation"])
def test_timeouts(ranks, way):
    """Rank 1 comes to the second collective only once rank 0 has given up."""
    long = datetime.timedelta(seconds=GROUP_TIMEOUT + 200)
    group = dist.new_group(timeout=long)
    x = torch.ones(4)
    dist.all_reduce(x, group=group)
    meet(ranks.rank, ranks.size, default_store())
    assert backend_of(group, "cpu").get_error() == ErrorType.SUCCESS
    short = datetime.timedelta(milliseconds=300)
    if way == "group":
        group.set_timeout(short)
    elif way == "backend":
        backend_of(group)._set_default_timeout(short)
    assert backend_of(group).options._timeout == (long if way == "operation" else short)
    if ranks.rank == 0:
        options = dist.AllreduceOptions()
        if way == "operation":
            options.timeout = short
        with pytest.raises(dist.DistBackendError, match=r"300 ms"):
            group.allreduce([x], options).wait()
        assert backend_of(group, "cpu").get_error() == ErrorType.TIMEOUT
        default_store().set("given up", "")
    else:
        default_store().wait(["given up"], PATIENCE)
        # The failure is the group's: whoever comes later hears of it.
        with pytest.raises(dist.DistBackendError, match="all_reduce"):
            group.allreduce([x]).wait()


@pytest.mark.ranks(2)
@everywhere
def test_use_after_destroy(device):
    group = dist.new_group()
    backend = backend_of(group, device)
    x = torch.ones(3, device=device)
    dist.all_reduce(x, group=group)
    dist.destroy_process_group(group)
    for call in (lambda: backend.allreduce([x]), lambda: backend.barrier(), lambda: backend.broadcast([x])):
        with pytest.raises(dist.DistBackendError, match="was destroyed: make a new one"):
            call()
    with pytest.raises(ValueError, match="is not initialized in the world group map"):
        dist.all_reduce(x, group=group)
    with pytest.raises(ValueError, match="Invalid process group"):
        dist.destroy_process_group(group)
    backend.shutdown()  # again: nothing
    assert total(None, device) == 3


@pytest.mark.ranks(2)
@everywhere
def test_abort_of_a_subgroup(ranks, device):
    group = dist.new_group()
    x = torch.ones(3, device=device)
    dist.all_reduce(x, group=group)
    torch.accelerator.synchronize()
    meet(ranks.rank, ranks.size, default_store())
    if ranks.rank == 0:
        backend_of(group, device).abort()
    # Rank 1 is in the midst of it, or not yet.
    with pytest.raises(dist.DistBackendError, match="rank 0 aborted the group"):
        dist.all_reduce(x, group=group, async_op=True).wait(PATIENCE)
    assert backend_of(group, device).get_error() == ErrorType.COMM_ERROR
    with pytest.raises(dist.DistBackendError, match="aborted"):
        dist.all_reduce(x, group=group)
    assert total(None, device) == 3


@pytest.mark.ranks(2)
def test_fsdp_with_memory_from_the_group(ranks):
    """FSDP2 takes its communication buffers from the group."""
    from torch.distributed.fsdp import fully_shard

    def net():
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to("vdev")

    whole, parts = net(), net()
    fully_shard(parts, mesh=init_device_mesh("vdev", (ranks.size,)))
    parts.set_allocate_memory_from_process_group_for_comm(True)
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(ranks.rank)).to("vdev")
    for model in (whole, parts):
        model(x).square().mean().backward()
    for ours, theirs in zip(parts.parameters(), whole.parameters(), strict=True):
        mean = theirs.grad.clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        torch.testing.assert_close(ours.grad.full_tensor(), mean)
