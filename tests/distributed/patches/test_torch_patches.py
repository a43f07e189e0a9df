"""The changes to torch: what each opens, that the hole is there without it, that others are left alone."""

import contextlib
import datetime
import functools
import pathlib
import sys
import warnings
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from common import PATIENCE
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.distributed import pipelining
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import fake_pg  # noqa: F401  registers the fake backend
from torch_build import WITH_CUDA, without_cuda

from vccl._device_type import backend_name
from vccl._groups.backends import vccl_backends
from vccl._torch_patches.distributed import rendezvous
from vccl.testing.ports import reserved_port

BACKENDS = ["vccl", None, "vdev:vccl", "cpu:gloo,vdev:vccl", "cpu:vccl,vdev:vccl"]
every_backend = pytest.mark.parametrize("backend", BACKENDS, ids=lambda name: str(name).replace(":", "_"))


def init(rank, size, store, backend, **options):
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, **options)
    return dist.group.WORLD


def devices(group) -> list[str]:
    return sorted(device.type for device in group._device_types)


def assert_serves(group, expected: list[str]) -> None:
    assert devices(group) == expected
    for device in expected:
        x = torch.ones(3, device=device)
        dist.all_reduce(x, group=group)
        assert x.tolist() == [dist.get_world_size(group)] * 3


@pytest.mark.ranks(2, group=False)
@every_backend
def test_default_backend(ranks, backend):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for group in (init(ranks.rank, ranks.size, ranks.store, backend), dist.new_group(backend=backend)):
            assert not group._has_hooks()
            seen = []
            group._register_on_completion_hook(seen.append)
            assert group._has_hooks()
            dist.all_reduce(torch.ones(3, device="vdev"), group=group)
            group._wait_for_pending_works()
            assert len(seen) == 1


@pytest.mark.ranks(2, group=False)
@every_backend
def test_sequence_numbers(ranks, backend):
    group = init(ranks.rank, ranks.size, ranks.store, backend)
    for number in range(3):
        assert group._get_sequence_number_for_group() == number
        dist.all_reduce(torch.ones(3, device="vdev"))
    gloo = dist.new_group(backend="gloo")
    dist.all_reduce(torch.ones(3), group=gloo)
    assert gloo._get_sequence_number_for_group() == 1


@pytest.mark.torch("<2.14", "later versions ask the backend, and set no numbers")
@pytest.mark.ranks(2, group=False)
@every_backend
def test_sequence_numbers_that_torch_sets(ranks, backend):
    group = init(ranks.rank, ranks.size, ranks.store, backend)
    group._set_sequence_number_for_group()
    assert group._get_sequence_number_for_group() == 0
    with pytest.raises(RuntimeError, match="does not yet support sequence numbers"):
        c10d.ProcessGroup._get_sequence_number_for_group.__wrapped__(group)
    with pytest.raises(RuntimeError, match="does not yet support sequence numbers"):
        c10d.ProcessGroup._set_sequence_number_for_group.__wrapped__(group)
    gloo = dist.new_group(backend="gloo")
    dist.all_reduce(torch.ones(3), group=gloo)
    assert gloo._get_sequence_number_for_group() == 1
    gloo._set_sequence_number_for_group()


@pytest.mark.ranks(3, group=False)
def test_group_names(ranks):
    """Ranks that are in different numbers of groups make further ones together."""
    rank, size = ranks.rank, ranks.size
    world = init(rank, size, ranks.store, "cpu:gloo,vdev:vccl", device_id=torch.device("vdev", rank))
    dist.new_group([0])
    dist.new_group([0, 2])
    if rank == 0:
        dist.new_group([0], use_local_synchronization=True)
    for _ in range(2):
        child = dist.split_group(world, [[0, 1], [2]])
        assert_serves(child, ["cpu", "vdev"])
        dist.monitored_barrier(child)
        if rank != 2:
            local = dist.new_group([0, 1], use_local_synchronization=True)
            assert_serves(local, ["cpu", "vdev"])
            dist.monitored_barrier(local)
            names = [None] * 2
            dist.all_gather_object(names, (child.group_name, local.group_name), group=local)
            assert names[0] == names[1]
            assert len({*names[0]}) == 2


@pytest.mark.ranks(2, group=False)
def test_gloo_beside_vccl_can_be_split(ranks):
    """A default group that is not the first with gloo in its process."""
    rank, size = ranks.rank, ranks.size
    for life in range(2):
        own = dist.PrefixStore(f"life {life}", ranks.store)
        world = init(rank, size, own, "cpu:gloo,vdev:vccl", device_id=torch.device("vdev", rank))
        assert_serves(dist.split_group(world, [[0, 1]]), ["cpu", "vdev"])
        dist.destroy_process_group()


@pytest.mark.ranks(3, group=False)
def test_capabilities(ranks):
    rank, size = ranks.rank, ranks.size
    init(rank, size, ranks.store, "vccl", device_id=torch.device("vdev", rank))
    # Not every rank is a member: torch asks vccl to take part in splitting then.
    for backend in ("gloo", "fake", "vccl", None):
        group = dist.new_group([0, 1], backend=backend)
        assert (group == dist.GroupMember.NON_GROUP_MEMBER) == (rank == 2)
        if rank < 2 and backend != "fake":
            x = torch.ones(3)
            dist.all_reduce(x, group=group)
            assert x.tolist() == [2, 2, 2]
    fake = dist.new_group(backend="fake")
    x = torch.full((3,), float(rank), device="vdev")
    dist.all_reduce(x, group=fake)
    assert x.tolist() == [rank] * 3
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(RuntimeError, match="ProcessGroupGloo::allreduce: unsupported device type vdev"):
        dist.all_reduce(x, group=gloo)


@pytest.mark.torch("<2.14", "later versions have dist.set_timeout, which test_newer_torch.py tests")
@pytest.mark.ranks(2, group=False)
@every_backend
def test_set_pg_timeout(ranks, backend):
    group = init(ranks.rank, ranks.size, ranks.store, backend)
    x = torch.ones(3, device="vdev")
    dist.all_reduce(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c10d._set_pg_timeout(datetime.timedelta(milliseconds=600), group)
    with (
        pytest.warns(UserWarning, match="only supported for either nccl or gloo")
        if backend
        in (
            "vccl",
            None,
        )
        else warnings.catch_warnings()
    ):
        c10d._set_pg_timeout.__wrapped__(datetime.timedelta(milliseconds=600), group)
    if ranks.rank == 0:
        with pytest.raises(dist.DistBackendError, match="600 ms"):
            dist.all_reduce(x)
            torch.accelerator.synchronize()
        ranks.store.set("rank 0 has failed", "")
    ranks.store.wait(["rank 0 has failed"], PATIENCE)


@pytest.mark.ranks(3, group=False)
@pytest.mark.parametrize("bound", [False, True], ids=["unbound", "bound"])
@every_backend
def test_shrink_group(ranks, backend, bound):
    rank, size = ranks.rank, ranks.size
    options = {"device_id": torch.device("vdev", rank)} if bound else {}
    group = init(rank, size, ranks.store, backend, **options)
    served = devices(group)
    assert_serves(group, served)
    if rank == 1:
        return
    shrunk = dist.shrink_group([1])
    assert shrunk is dist.group.WORLD
    assert dist.get_world_size() == size - 1
    assert shrunk.bound_device_id == options.get("device_id")
    assert_serves(shrunk, served)
    assert {shrunk._get_backend(torch.device(device)).name() for device in served} == (
        {"gloo", backend_name()} if backend == "cpu:gloo,vdev:vccl" else {backend_name()}
    )
    assert not shrunk._has_hooks()
    assert shrunk._get_sequence_number_for_group() > 0
    dist.monitored_barrier()
    objects = [None] * (size - 1)
    dist.all_gather_object(objects, dist.get_rank())
    assert objects == [0, 1]
    again = dist.new_group()
    assert_serves(again, devices(again))


@pytest.mark.ranks(4, group=False)
def test_shrink_a_subgroup(ranks):
    init(ranks.rank, ranks.size, ranks.store, "vccl")
    group = dist.new_group([0, 2, 3])
    if ranks.rank in (0, 3):
        shrunk = dist.shrink_group([1], group)  # a rank of the group, not of the world
        assert dist.get_process_group_ranks(shrunk) == [0, 3]
        assert_serves(shrunk, ["cpu", "vdev"])
    dist.all_reduce(torch.ones(2))
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(TypeError, match="does not support shrinking"):
        dist.shrink_group([1], gloo)


@pytest.mark.ranks(2, group=False)
@every_backend
def test_ddp(ranks, backend):
    rank, size = ranks.rank, ranks.size
    init(rank, size, ranks.store, backend)
    device = torch.device("vdev", rank)
    x = torch.full((4, 3), rank + 1.0)
    for hook, state in (
        (default_hooks.bf16_compress_hook, None),
        (default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook), None),
    ):
        torch.manual_seed(3)
        reference = nn.Linear(3, 2)
        net = nn.Linear(3, 2).to(device)
        net.load_state_dict(reference.state_dict())
        net = DistributedDataParallel(net)
        net.register_comm_hook(state, hook)
        net(x.to(device)).sum().backward()
        reference(torch.cat([torch.full((4, 3), other + 1.0) for other in range(size)])).sum().backward()
        for p, q in zip(net.module.parameters(), reference.parameters(), strict=True):
            # Eight bits of a mantissa.
            torch.testing.assert_close(p.grad.cpu(), q.grad / size, rtol=2**-7, atol=0)
    data = net._get_ddp_logging_data()
    assert data["backend_name"] == ("vccl" if backend else backend_name())
    assert data["comm_hook"].endswith("bf16_compress_wrapper_hook")
    # Its other checks are made as before.
    with pytest.raises(TypeError, match="callable"):
        DistributedDataParallel(nn.Linear(3, 2).to(device)).register_comm_hook(None, 1)
    with pytest.raises(ValueError, match="bucket annotation"):
        DistributedDataParallel(nn.Linear(3, 2).to(device)).register_comm_hook(None, wrongly_annotated)


def wrongly_annotated(state, bucket: int):
    raise AssertionError("never called")


@without_cuda  # which has NCCL, so that torch takes the hooks
@pytest.mark.ranks(2, group=False)
def test_ddp_of_gloo(ranks):
    """gloo's groups are refused as before."""
    init(ranks.rank, ranks.size, ranks.store, "vccl")
    gloo = DistributedDataParallel(nn.Linear(3, 2), process_group=dist.new_group(backend="gloo"))
    assert gloo._get_ddp_logging_data()["backend_name"] == "gloo"
    with pytest.raises(TypeError, match="BF16 all reduce communication hook required"):
        gloo.register_comm_hook(None, default_hooks.bf16_compress_hook)


def without_communication(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class Managed(dist.ProcessGroup):
    """A group in Python, without backends of its own, as torchft's: it hands its calls to another one."""

    def __init__(self, inner: dist.ProcessGroup) -> None:
        super().__init__(inner.rank(), inner.size())
        self.inner = inner

    def allreduce(self, *args):
        return self.inner.allreduce(*args)

    def allgather(self, *args):
        return self.inner.allgather(*args)

    def broadcast(self, *args):
        return self.inner.broadcast(*args)

    def getBackendName(self):
        return "managed"


def outcome(call, *args) -> tuple:
    """What a call returns, or raises."""
    try:
        return "returned", call(*args)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.ranks(2, group=False)
@pytest.mark.parametrize("kind", ["managed", "fake", "gloo"])
@pytest.mark.torch("<2.14", "later versions are not patched there")
def test_numbers_and_timeouts_of_groups_of_another_make(ranks, kind):
    group = init(ranks.rank, ranks.size, ranks.store, "fake" if kind == "fake" else "gloo")
    if kind == "managed":
        group = Managed(group)
    own = c10d.ProcessGroup
    for change in (own._get_sequence_number_for_group, own._set_sequence_number_for_group):
        assert outcome(change, group) == outcome(change.__wrapped__, group), change
    minute = datetime.timedelta(minutes=1)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert outcome(c10d._set_pg_timeout, minute, group) == outcome(
            c10d._set_pg_timeout.__wrapped__, minute, group
        )
    assert len(warned) % 2 == 0  # as often


@pytest.mark.ranks(2, group=False)
@pytest.mark.parametrize("kind", ["managed", "fake", "gloo"])
def test_groups_of_another_make(ranks, kind):
    assert outcome(c10d._hash_ranks_to_str, [0]) == outcome(c10d._hash_ranks_to_str.__wrapped__, [0])
    group = init(ranks.rank, ranks.size, ranks.store, "fake" if kind == "fake" else "gloo")
    assert "vdev" not in devices(group)
    assert "vdev" not in devices(dist.new_group(backend="gloo" if kind == "gloo" else "fake"))
    if kind == "managed":
        group = Managed(group)
    assert vccl_backends(group) == []

    own = c10d.ProcessGroup
    minute = datetime.timedelta(minutes=1)
    for change, args in (
        (c10d._hash_ranks_to_str, ([0],)),
        (c10d._validate_shrink_backend_requirements, ({"process_group": group, "group_name": "x"},)),
        (c10d.monitored_barrier, (group, minute)),
        (own.monitored_barrier, (group, minute)),
    ):
        assert outcome(change, *args) == outcome(change.__wrapped__, *args), change

    for manager in (c10d._coalescing_manager, c10d._coalescing_manager.__wrapped__):
        with pytest.raises(ZeroDivisionError), manager(group):
            raise ZeroDivisionError
        c10d._world.pg_coalesce_state.pop(group, None)  # which torch's own leaves behind

    x = torch.full((4, 3), ranks.rank + 1.0)
    net = DistributedDataParallel(nn.Linear(3, 2), process_group=group)
    net.register_comm_hook(None, without_communication)
    net(x).sum().backward()
    assert net.module.weight.grad is not None
    data = net._get_ddp_logging_data()
    assert data == DistributedDataParallel._get_ddp_logging_data.__wrapped__(net)
    if WITH_CUDA:  # which has NCCL, so that torch takes the hooks
        return
    refused = DistributedDataParallel(nn.Linear(3, 2), process_group=group)
    with pytest.raises(TypeError, match="BF16 all reduce communication hook required"):
        refused.register_comm_hook(group, default_hooks.bf16_compress_hook)

    class Context:
        pass

    Context.group = group
    backward = functional._AllGatherBase.backward
    assert outcome(backward, Context, x) == outcome(backward.__wrapped__, Context, x)


@pytest.mark.ranks(1, group=False)
def test_stores_of_another_make(ranks):
    with mock.patch.object(rendezvous, "make_store", side_effect=ZeroDivisionError):
        for backend in ("gloo", "fake", "vccl", None):
            raises = (
                pytest.raises(ZeroDivisionError) if backend in ("vccl", None) else contextlib.nullcontext()
            )
            with reserved_port() as port, raises:
                method = f"tcp://127.0.0.1:{port}"
                dist.init_process_group(backend, init_method=method, rank=ranks.rank, world_size=ranks.size)
                dist.destroy_process_group()


@pytest.mark.ranks(1, group=False)
def test_without_a_default_group():
    for manager in (c10d._coalescing_manager, c10d._coalescing_manager.__wrapped__):
        with pytest.raises(ValueError, match="Default process group has not been initialized"), manager():
            pass
    for change in (c10d.monitored_barrier, functools.partial(c10d._set_pg_timeout, datetime.timedelta(1))):
        with pytest.raises(ValueError, match="Default process group has not been initialized"):
            change()


ABBREVIATED = """
import sys
print(sys.argv[1:])
"""


@pytest.mark.parametrize("launcher", [["torchrun"], ["-m", "torch.distributed.run"]], ids=" ".join)
def test_torchrun_leaves_abbreviations_to_the_script(start, tmp_path, launcher):
    script = tmp_path / "script.py"
    script.write_text(ABBREVIATED)
    if launcher == ["torchrun"]:
        launcher = [pathlib.Path(sys.executable).parent / "torchrun"]
    torchrun = start([sys.executable, *launcher, script, "--max", "64M"])
    text = torchrun.output(120)
    assert torchrun.returncode == 0, text
    assert "['--max', '64M']" in text


@pytest.mark.torch("<2.13", "later schedules name the type of their devices")
@pytest.mark.ranks(1, group=False)
def test_pipeline_generators(ranks):
    """The first step, which runs the stages once more, leaves the generators as one run does."""
    init(ranks.rank, ranks.size, ranks.store, "vccl")
    card = torch.device("vdev", 0)
    net = nn.Sequential(nn.Linear(3, 2), nn.Dropout()).to(card)
    schedule = pipelining.ScheduleGPipe(pipelining.PipelineStage(net, 0, 1, card), 2)
    x = torch.ones(4, 3, device=card)
    torch.manual_seed(1)
    expected = [net(part) for part in x.chunk(2)]
    torch.manual_seed(1)
    assert torch.equal(schedule.step(x), torch.cat(expected))
    # Types that are given count.
    with torch.random.fork_rng(devices=iter([0]), device_type="vdev"), torch.random.fork_rng(devices=[]):
        torch.rand(3, device=card)
