"""What torch.distributed of some versions has and that of others has not."""

import datetime
import json
import threading
import warnings

import pytest
import torch
import torch.distributed as dist
from common import PATIENCE, backend_of, everywhere, meet, total

from vccl._device_type import backend_name

pytestmark = pytest.mark.torch(">=2.14", "torch.distributed has no such functions")


@pytest.mark.ranks(3)
@everywhere
@pytest.mark.parametrize("async_op", [False, True])
def test_gather_single(ranks, device, async_op):
    x = torch.arange(4.0, device=device) + 10 * ranks.rank
    whole = torch.empty(12, device=device) if ranks.rank == 1 else None
    work = dist.gather_single(x, whole, dst=1, async_op=async_op)
    if work is not None:
        work.wait()
    if whole is not None:
        assert whole.view(3, 4).tolist() == [[r * 10.0 + i for i in range(4)] for r in range(3)]


@pytest.mark.ranks(2)
@everywhere
def test_gather_single_in_place_and_not_contiguous(ranks, device):
    whole = torch.full((8,), -1.0, device=device)
    part = whole[4 * ranks.rank : 4 * ranks.rank + 4]
    part.fill_(ranks.rank)
    dist.gather_single(part, whole if ranks.rank == 0 else None, dst=0)
    if ranks.rank == 0:
        assert whole.tolist() == [0.0] * 4 + [1.0] * 4
    x = torch.arange(8, device=device)[::2]
    spread = torch.zeros(16, dtype=torch.int64, device=device)[::2]
    dist.gather_single(x, spread if ranks.rank == 0 else None, dst=0)
    if ranks.rank == 0:
        assert spread.tolist() == [0, 2, 4, 6] * 2


@pytest.mark.ranks(2)
@everywhere
def test_gather_single_refuses_an_output_of_another_size(ranks, device):
    x = torch.ones(4, device=device)
    if ranks.rank == 0:
        with pytest.raises(ValueError, match=r"gather_single: .*output"):
            dist.gather_single(x, torch.empty(7, device=device), dst=0)
    meet(ranks.rank, ranks.size, ranks.store)
    assert total(None, device) == 3


@pytest.mark.ranks(2)
@everywhere
def test_collectives_of_one_tensor(ranks, device):
    x = torch.arange(4.0, device=device) + ranks.rank
    whole = torch.empty(8, device=device)
    dist.all_gather_single(whole, x)
    assert whole.tolist() == [0.0, 1, 2, 3, 1, 2, 3, 4]
    part = torch.empty(4, device=device)
    dist.reduce_scatter_single(part, whole)
    assert part.tolist() == [2 * value for value in whole[4 * ranks.rank : 4 * ranks.rank + 4].tolist()]
    swapped = torch.empty(4, device=device)
    dist.all_to_all_single(swapped, x)
    first = 2.0 * ranks.rank
    assert swapped.tolist() == [first, first + 1, first + 1, first + 2]


BACKENDS = ["vccl", None, "vdev:vccl", "cpu:gloo,vdev:vccl", "cpu:vccl,vdev:vccl"]


@pytest.mark.ranks(2, group=False)
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda name: str(name).replace(":", "_"))
def test_set_timeout(ranks, backend):
    dist.init_process_group(backend, store=ranks.store, rank=ranks.rank, world_size=ranks.size)
    x = torch.ones(3, device="vdev")
    dist.all_reduce(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dist.set_timeout(datetime.timedelta(milliseconds=600))
    if ranks.rank == 0:
        with pytest.raises(dist.DistBackendError, match="600 ms"):
            dist.all_reduce(x)
            torch.accelerator.synchronize()
        ranks.store.set("rank 0 has failed", "")
    ranks.store.wait(["rank 0 has failed"], PATIENCE)


@pytest.mark.ranks(3)
@everywhere
def test_all_ranks_make_a_group_after_some_have_made_one(ranks, device):
    """The number that torch gives a group must not count those that only some ranks have made."""
    if ranks.rank < 2:
        dist.new_group([0, 1], use_local_synchronization=True)
    assert total(dist.new_group(), device) == 6


@pytest.mark.ranks(2)
@everywhere
def test_extra_time_ends_with_the_first_operation_after_it(ranks, device):
    """Rank 1 comes later than the timeout, but not later than the extended one. The second time it fails."""
    group = dist.new_group(timeout=PATIENCE)
    x = torch.ones(3, device=device)
    dist.all_reduce(x, group=group)  # the ranks are connected within the long timeout
    torch.accelerator.synchronize()
    late = threading.Event()
    group.set_timeout(datetime.timedelta(seconds=1))
    group._add_ephemeral_timeout(datetime.timedelta(seconds=100))
    group._add_ephemeral_timeout(datetime.timedelta(seconds=200))
    if ranks.rank == 1:
        late.wait(2.5)
    dist.all_reduce(x, group=group)
    assert x.tolist() == [4.0] * 3
    meet(ranks.rank, ranks.size, ranks.store)
    if ranks.rank == 0:
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            dist.all_reduce(x, group=group, async_op=True).wait(PATIENCE)
    ranks.store.set(f"seen by {ranks.rank}", "")
    ranks.store.wait(["seen by 0"], PATIENCE)


@pytest.mark.ranks(2)
@everywhere
def test_abort_hooks(ranks, device):
    group = dist.new_group()
    x = torch.ones(3, device=device)
    dist.all_reduce(x, group=group)
    torch.accelerator.synchronize()
    called = []

    def fails():
        called.append("fails")
        raise RuntimeError("a hook that fails")

    for number, hook in enumerate((fails, lambda: called.append("second"), lambda: called.append("third"))):
        group.register_abort_hook(number, hook)
    group.register_abort_hook(1, lambda: called.append("in its place"))
    group.unregister_abort_hook(2)
    group.unregister_abort_hook(77)
    meet(ranks.rank, ranks.size, ranks.store)
    if ranks.rank == 0:
        backend_of(group, device).abort()
        assert called == ["fails", "in its place"]
    else:
        with pytest.raises(dist.DistBackendError, match="rank 0 aborted the group"):
            dist.all_reduce(x, group=group, async_op=True).wait(PATIENCE)
        deadline = datetime.datetime.now() + PATIENCE
        while called != ["fails", "in its place"]:
            assert datetime.datetime.now() < deadline, called
            threading.Event().wait(0.01)


@pytest.mark.ranks(2)
def test_hooks_around_collectives(ranks):
    """Torch calls these itself, whatever the backend is."""
    seen = []
    group = dist.new_group()
    group.register_pre_hook(1, lambda args: seen.append(("before", args.name.name)))
    group.register_post_hook(2, lambda args: seen.append(("after", args.name.name)))
    dist.all_reduce(torch.ones(3, device="vdev"), group=group)
    group.unregister_pre_hook(1)
    group.unregister_post_hook(2)
    dist.all_reduce(torch.ones(3, device="vdev"), group=group)
    assert seen == [("before", "ALLREDUCE"), ("after", "ALLREDUCE")]


@pytest.mark.ranks(2, group=False)
def test_groups_that_ranks_join_later_are_refused(ranks):
    with pytest.raises(NotImplementedError, match="enable_reconfigure"):
        dist.init_process_group(
            "vccl", store=ranks.store, rank=ranks.rank, world_size=ranks.size, enable_reconfigure=True
        )
    assert not dist.is_initialized()


@pytest.mark.ranks(2, group=False)
def test_the_check_for_nan(ranks, monkeypatch):
    monkeypatch.setenv("TORCH_DIST_NAN_CHECK", "1")
    dist.init_process_group("vccl", store=ranks.store, rank=ranks.rank, world_size=ranks.size)
    dist.all_reduce(torch.ones(3, device="vdev"))
    with pytest.raises(RuntimeError, match="NaN"):
        dist.all_reduce(torch.full((3,), float("nan"), device="vdev"))
        torch.accelerator.synchronize()


@pytest.mark.torch(">=2.15", "older versions attach their flight recorder to built-in backends alone")
@pytest.mark.ranks(2)
@everywhere
def test_torchs_flight_recorder_is_told_what_has_succeeded(ranks, device):
    for _ in range(3):
        dist.all_reduce(torch.ones(3, device=device), async_op=True).wait(PATIENCE)
    trace = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(backend=backend_name()))
    states = [entry["state"] for entry in trace["entries"] if "all_reduce" in entry["profiling_name"]]
    assert states[-3:] == ["completed"] * 3
