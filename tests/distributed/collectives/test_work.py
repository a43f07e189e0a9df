"""The handle of a collective: what it tells, and when; hooks on the end of collectives, and DDP's clock."""

import datetime
import gc
import itertools
import os
import sys
import threading

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from common import PATIENCE, backend_of, everywhere, hear, tell
from processes import wait_until
from torch._C._distributed_c10d import ErrorType, OpType, WorkResult
from torch.distributed import distributed_c10d as c10d


def wait_until_over(work: dist.Work) -> None:
    """On the host, also for a card."""
    work.wait(PATIENCE)


@pytest.mark.ranks(2)
@everywhere
def test_life_of_a_work(ranks, device):
    """A handle before and after the end of its collective; rank 1 comes when rank 0 has looked."""
    x = torch.full((64,), ranks.rank + 1.0, device=device)
    dist.all_reduce(torch.ones(1, device=device))
    if ranks.rank == 1:
        hear("looked")
    work = dist.all_reduce(x, async_op=True)
    if ranks.rank == 0:
        assert not work.is_completed() and not work.is_success()
        result = work.get_future_result()
        assert not result.done()
        with pytest.raises(RuntimeError, match=r"duration of all_reduce .* is known once it has ended"):
            work._get_duration()
        with pytest.raises(RuntimeError, match="all_reduce has no source rank: only a receive has"):
            work.source_rank()
        with pytest.raises(dist.DistBackendError, match=r"did not end within the 20 ms .* It goes on"):
            work.wait(datetime.timedelta(milliseconds=20))
        tell("looked")
    wait_until_over(work)
    work.synchronize()
    assert work.is_completed() and work.is_success()
    assert (x == 3).all().item()
    assert work.result()[0].data_ptr() == x.data_ptr()
    assert work.get_future().wait()[0].data_ptr() == x.data_ptr()
    assert work.get_future_result().wait() == int(WorkResult.SUCCESS.value)
    assert work._get_duration() > 0
    assert work._get_op_type() == OpType.ALLREDUCE.value
    assert work.wait()


@pytest.mark.ranks(2)
@everywhere
def test_the_timeout_of_a_work(ranks, device):
    backend = backend_of(device=device)
    given = dist.AllreduceOptions()
    given.timeout = datetime.timedelta(seconds=123)
    x = torch.ones(8, device=device)
    work = backend.allreduce([x], given)
    assert backend._verify_work_timeout(work, datetime.timedelta(seconds=123))
    assert not backend._verify_work_timeout(work, datetime.timedelta(seconds=124))
    wait_until_over(work)
    with pytest.raises(TypeError, match="a Work of a collective or message of this backend"):
        backend._verify_work_timeout(dist.Work(), datetime.timedelta(seconds=1))


def refuses_nan(rank, size, device):
    backend = backend_of(device=device)
    x, y = torch.full((8,), float("nan"), device=device), torch.empty(16, device=device)

    def gather():
        wait_until_over(backend._allgather_base(y, x, c10d.AllgatherOptions()))
        assert y.isnan().all().item()

    gather()
    backend._set_enable_nan_check(True)
    backend._set_enable_nan_check(False)
    gather()
    backend._set_enable_nan_check(True)
    with pytest.raises(ValueError, match="element 0 of 8 of the input is NaN or infinite"):
        gather()


@everywhere
def test_a_check_for_nan_that_is_switched_on(rank_pool, device):
    rank_pool.run(2, refuses_nan, device)


def used_group(rank, device):
    """A group of two ranks that both have returned from its first collective."""
    group = dist.new_group()
    dist.all_reduce(torch.ones(1, device=device), group=group)
    torch.accelerator.synchronize()
    tell(f"rank {rank} is there")
    hear(f"rank {1 - rank} is there")
    return group


def begin(group, rank, device, what):
    """The handle of an all_reduce that ends so; None on rank 1 with a timeout, once rank 0 has given up."""
    x = torch.ones(8, device=device)
    options = dist.AllreduceOptions()
    if what == "timeout":
        options.timeout = datetime.timedelta(milliseconds=200)
        if rank == 1:
            hear("given up")
            return None
    return group.allreduce([x[: 5 if what == "mismatch" and rank == 1 else 8]], options)


@pytest.mark.ranks(2)
@everywhere
@pytest.mark.parametrize("what", ["success", "timeout", "mismatch"])
def test_future_result(ranks, device, what):
    """get_future_result tells how; it never raises."""
    group = used_group(ranks.rank, device)
    work = begin(group, ranks.rank, device, what)
    if work is None:
        return
    seen = []
    done = threading.Event()

    def look(future):
        seen.append(future.value())
        done.set()

    work.get_future_result().then(look)
    assert done.wait(PATIENCE.total_seconds())
    expected = {
        "success": WorkResult.SUCCESS,
        "timeout": WorkResult.TIMEOUT,
        "mismatch": WorkResult.COMM_ERROR,
    }
    assert seen == [int(expected[what].value)], (seen, what)
    assert work.get_future_result().value() == seen[0]
    if what == "success":
        wait_until_over(work)
        return
    if what == "timeout":
        tell("given up")
    # wait() names the operation; is_success stays false.
    with pytest.raises(dist.DistBackendError, match="all_reduce"):
        wait_until_over(work)
    assert work.is_completed() and not work.is_success()
    if device == "vdev":
        with pytest.raises(dist.DistBackendError, match="all_reduce"):
            torch.accelerator.synchronize()


@pytest.mark.torch(">=2.13", "torch cannot give Python the exception of a handle, whatever the backend")
@pytest.mark.ranks(2)
@everywhere
@pytest.mark.parametrize("what", ["success", "timeout", "mismatch"])
def test_exception(ranks, device, what):
    """The handle holds the exception that wait() raises, from the end of the collective on."""
    group = used_group(ranks.rank, device)
    if ranks.rank == 1:
        hear("looked")
    work = begin(group, ranks.rank, device, what)
    if work is None:
        return
    if ranks.rank == 0:
        if what != "timeout":  # which may be over
            assert work.exception() is None
        tell("looked")
    if what == "success":
        wait_until_over(work)
        assert work.exception() is None
        return
    with pytest.raises(dist.DistBackendError) as raised:
        wait_until_over(work)
    expected = "waited 200 ms for rank 1" if what == "timeout" else "Every rank must call the same"
    assert expected in str(work.exception()) and expected in str(raised.value)
    if what == "timeout":
        tell("given up")
    if device == "vdev":
        with pytest.raises(dist.DistBackendError, match="all_reduce"):
            torch.accelerator.synchronize()


@pytest.mark.ranks(3)
def test_sequence_numbers(ranks):
    backend = backend_of()
    counts = []
    for step in range(4):
        counts.append(backend._get_sequence_number_for_group())
        dist.all_reduce(torch.ones(2, device="vdev" if step % 2 else "cpu"))
        dist.all_reduce(torch.ones(2), async_op=True).wait()
    counts.append(backend._get_sequence_number_for_group())
    backend._set_sequence_number_for_group()
    assert all(later - before == 2 for before, later in itertools.pairwise(counts)), counts
    everybody = [None] * ranks.size
    dist.all_gather_object(everybody, counts)
    assert everybody == [counts] * ranks.size
    # A group counts for itself.
    pair = dist.new_group()
    assert backend_of(pair)._get_sequence_number_for_group() == 0


@pytest.mark.ranks(2)
@everywhere
def test_block_current_stream(ranks, device):
    """block_current_stream lets the stream wait and not the host, for CPU tensors too."""
    x = torch.full((32,), ranks.rank + 1.0, device=device)
    dist.all_reduce(torch.ones(1, device=device))
    if ranks.rank == 1:
        hear("enqueued")
    work = dist.all_reduce(x, async_op=True)
    stream = torch.vdev.Stream()
    seen = []
    with torch.vdev.stream(stream):
        work.block_current_stream()
        torch.vdev._launch_host_func(lambda: seen.append(work.is_completed()))
    if ranks.rank == 0:
        assert not stream.query() and seen == []
        tell("enqueued")
    stream.synchronize()
    assert seen == [True] and (x == 3).all().item()


@pytest.mark.ranks(2)
def test_block_current_stream_passes_the_error_on(ranks):
    group = dist.new_group()
    work = dist.all_reduce(torch.ones(3 + ranks.rank), group=group, async_op=True)
    stream = torch.vdev.Stream()
    ran = []
    with torch.vdev.stream(stream):
        work.block_current_stream()
        torch.vdev._launch_host_func(lambda: ran.append(True))
    for _ in range(3):
        with pytest.raises(dist.DistBackendError, match=r"all_reduce.*3 elements"):
            stream.synchronize()
    assert not ran


@pytest.mark.ranks(2)
@everywhere
def test_futures_that_use_the_group(ranks, device):
    """What hangs on a future may use the group."""
    x = torch.full((16,), ranks.rank + 1.0, device=device)

    def then(future):
        y = future.value()[0] / ranks.size
        return dist.all_reduce(y, async_op=True).get_future().wait()[0]

    y = dist.all_reduce(x, async_op=True).get_future().then(then).wait()
    assert (y == ranks.size * (ranks.size + 1) / 2).all().item()


@pytest.mark.ranks(2)
@everywhere
def test_abort_frees_who_waits(ranks, device):
    group = dist.new_group()
    dist.all_reduce(torch.ones(1, device=device), group=group)
    torch.accelerator.synchronize()
    tell(f"rank {ranks.rank} is there")
    hear(f"rank {1 - ranks.rank} is there")
    if ranks.rank == 0:
        work = dist.all_reduce(torch.ones(4, device=device), group=group, async_op=True)
        backend_of(group, device).abort()
        with pytest.raises(dist.DistBackendError, match="abort"):
            wait_until_over(work)
        tell("aborted")
    else:
        hear("aborted")
        with pytest.raises(dist.DistBackendError, match="abort"):
            dist.all_reduce(torch.ones(4, device=device), group=group)
    assert backend_of(group, device).get_error() == ErrorType.COMM_ERROR


# --- on-completion hooks


@pytest.mark.ranks(2)
@everywhere
@pytest.mark.parametrize("what", ["all_reduce", "recv", "barrier"])
def test_work_that_nobody_waits_for_times_out(ranks, device, what):
    """Rank 1 never comes. No call of the program waits, and all that tells of the operation knows its end."""
    group = dist.new_group(timeout=PATIENCE)
    x = torch.ones(8, device=device)
    dist.all_reduce(x, group=group)
    torch.accelerator.synchronize()
    tell(f"rank {ranks.rank} is there")
    hear(f"rank {1 - ranks.rank} is there")
    if ranks.rank == 1:
        hear("given up")
        return
    ended = []
    group._register_on_completion_hook(lambda info: ended.append(info.seq))
    backend = backend_of(group, device)
    backend._set_default_timeout(datetime.timedelta(milliseconds=100))
    if what == "recv":
        work = backend.recv([x], 1, 0)
    else:
        work = getattr(dist, what)(*([x] if what == "all_reduce" else []), group=group, async_op=True)
    wait_until(lambda: work.is_completed())
    assert not work.is_success()
    with pytest.raises(dist.DistBackendError, match="waited 100 ms for rank 1"):
        wait_until_over(work)
    assert backend.get_error() == ErrorType.TIMEOUT
    assert work._get_duration() > 0
    group._wait_for_pending_works()
    assert len(ended) == 1
    tell("given up")


@pytest.mark.ranks(2)
def test_completion_hook(ranks):
    size = ranks.size
    group = dist.group.WORLD
    infos, threads = [], set()

    def hook(info):
        infos.append(info)
        threads.add(threading.get_ident())

    assert not group._has_hooks()
    dist.all_reduce(torch.ones(1))  # before: nobody hears of it
    first = backend_of()._get_sequence_number_for_group()
    group._register_on_completion_hook(hook)
    assert group._has_hooks()
    with pytest.raises(dist.DistBackendError, match="has an on-completion hook already"):
        group._register_on_completion_hook(hook)
    expected = []
    for device in ("cpu", "vdev"):
        x = torch.ones(1000, device=device)
        for async_op in (False, True):
            works = [
                dist.all_reduce(x, async_op=async_op),
                dist.broadcast(x, 0, async_op=async_op),
                dist.all_gather_into_tensor(torch.empty(1000 * size, device=device), x, async_op=async_op),
            ]
            expected += [OpType.ALLREDUCE, OpType.BROADCAST, OpType._ALLGATHER_BASE]
            for work in works:
                if work is not None:
                    work.wait()
    dist.barrier()
    expected.append(OpType.BARRIER)
    group._wait_for_pending_works()
    assert [info.op_type for info in infos] == expected
    assert [info.seq for info in infos] == list(range(first + 1, first + 1 + len(expected)))
    assert len(threads) == 1 and threading.get_ident() not in threads
    # Seen in whole microseconds: what is faster lasted none, and rounding may add one.
    rounding = datetime.timedelta(microseconds=2)
    for info in infos:
        assert info.time_started <= info.time_finished
        assert (
            datetime.timedelta(0) <= info.active_duration <= info.time_finished - info.time_started + rounding
        )
    assert sum((info.active_duration for info in infos), datetime.timedelta(0)) > datetime.timedelta(0)
    for before, after in itertools.pairwise(infos):
        assert before.time_finished <= after.time_finished


@pytest.mark.ranks(2)
@pytest.mark.parametrize("way", ["world", "subgroup", "shutdown"])
def test_destroying_waits_for_hooks(way):
    """Destroying waits until the hook has been called for everything."""
    group = dist.new_group() if way == "subgroup" else dist.group.WORLD
    called = []
    go_on = threading.Event()

    def hook(info):
        go_on.wait(60)
        called.append(info.seq)
        if info.seq == 2:
            raise ValueError("a hook's own trouble")

    group._register_on_completion_hook(hook)
    x = torch.ones(10, device="vdev")
    for _ in range(3):
        dist.all_reduce(x, group=group)
        dist.all_reduce(x, group=group, async_op=True).wait()
    assert called == []
    threading.Timer(0.2, go_on.set).start()
    if way == "shutdown":
        backend_of(group).shutdown()
    else:
        dist.destroy_process_group(group)
    assert called == [1, 2, 3, 4, 5, 6]


@pytest.mark.ranks(2)
def test_hook_uses_its_group(ranks):
    """A hook may launch collectives of the group it belongs to; it hears of those too."""
    group = dist.new_group()
    seen = []

    def hook(info):
        seen.append(info.seq)
        if info.seq <= 3:
            x = torch.ones(5, device="vdev")
            dist.all_reduce(x, group=group)
            assert (x == ranks.size).all().item()

    group._register_on_completion_hook(hook)
    # One after the other, so that both ranks launch in the same order.
    dist.all_reduce(torch.ones(2), group=group)
    group._wait_for_pending_works()
    assert seen == [1, 2, 3, 4]


@pytest.mark.ranks(2)
def test_hook_hears_of_a_failure(ranks):
    group = dist.new_group()
    seen = []
    group._register_on_completion_hook(lambda info: seen.append(info.seq))
    dist.all_reduce(torch.ones(3), group=group)
    with pytest.raises(dist.DistBackendError, match="3 elements"):
        dist.all_reduce(torch.ones(3 + ranks.rank), group=group)
    group._wait_for_pending_works()
    assert seen == [1, 2]


@pytest.mark.ranks(2)
def test_hook_shuts_its_group_down():
    group = dist.new_group()
    destroyed = threading.Event()

    def hook(info):
        backend_of(group, "cpu").shutdown()
        destroyed.set()

    group._register_on_completion_hook(hook)
    dist.all_reduce(torch.ones(3), group=group)
    assert destroyed.wait(60)
    with pytest.raises(dist.DistBackendError, match="was destroyed"):
        dist.all_reduce(torch.ones(3), group=group)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.ranks(2)
def test_hooks_leave_no_thread():
    x = torch.ones(3)
    dist.all_reduce(x, async_op=True).wait()
    before = None
    for step in range(5):
        group = dist.new_group()
        group._register_on_completion_hook(lambda info: None)
        dist.all_reduce(x, group=group)
        dist.destroy_process_group(group)
        if step == 1:
            before = threads()
    wait_until(lambda: threads() <= before)  # one that was joined may stay in /proc for a moment


@pytest.mark.ranks(2)
def test_forked_child_leaves_the_hook_alone():
    group = dist.group.WORLD
    called = []
    group._register_on_completion_hook(lambda info: called.append(info.seq))
    x = torch.ones(3)
    dist.all_reduce(x)
    gc.collect()  # groups of other backends, gloo's for one, do not survive being freed in a forked child
    child = os.fork()
    if child == 0:
        group._wait_for_pending_works()
        dist.destroy_process_group()
        gc.collect()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, f"the child ended with {status}"
    dist.all_reduce(x)
    group._wait_for_pending_works()
    assert called == [1, 2]


EXIT_SCRIPT = """
import datetime, sys, time, torch, torch.distributed as dist
import vccl
if sys.argv[1] == "slow":  # on any machine: all hooks are called, however long that takes there
    vccl.distributed._PATIENCE_AT_EXIT = datetime.timedelta(seconds=300)
dist.init_process_group("vccl", store=dist.HashStore(), rank=0, world_size=1)
called = []
def hook(info):
    time.sleep(600 if sys.argv[1] == "stuck" else 0.05)
    called.append(info.seq)
    if len(called) == 3:
        print("called", *called, flush=True)
dist.group.WORLD._register_on_completion_hook(hook)
for _ in range(3):
    dist.all_reduce(torch.ones(3), async_op=True).wait()
"""


@pytest.mark.parametrize("how", ["slow", "stuck"])
def test_exit_with_hooks_pending(run, tmp_path, how):
    """A process that ends without destroying its group waits a little for its hooks, and ends quietly."""
    script = tmp_path / "script.py"
    script.write_text(EXIT_SCRIPT)
    path = os.pathsep.join(p for p in sys.path if p)
    output = run([sys.executable, script, how], env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"})
    assert output.strip() == ("called 1 2 3" if how == "slow" else "")


# --- DDP's clock


@pytest.mark.ranks(2)
@everywhere
def test_ddp_logs_times(device):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).to(device)
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    ddp._set_ddp_runtime_logging_sample_rate(1)
    for _ in range(4):
        ddp(torch.ones(16, 64, device=device)).sum().backward()
    ddp._get_ddp_logging_data()
    logged = ddp._get_ddp_logging_data()
    assert logged["backend_name"] in ("custom", "vccl")
    for name in ("forward_compute_time", "backward_compute_time", "backward_comm_time"):
        assert logged[name] > 0, (name, logged)
        assert logged["avg_" + name] > 0, (name, logged)
    assert logged["backward_compute_comm_overlap_time"] >= 0
    assert logged["iteration"] == 3  # the first is 0
    # Moments of one iteration, in nanoseconds since the epoch: in order.
    moments = [
        logged[name]
        for name in ("forward_compute_time_start", "backward_compute_time_start", "backward_compute_time_end")
    ]
    assert 0 < moments[0] < moments[1] < moments[2]


@pytest.mark.ranks(1)
@everywhere
def test_torch_forgets_a_work_that_was_waited_for(ranks, device):
    """torch keeps a Work for wait_tensor() inside this context, and nobody calls that after work.wait()."""
    kept = torch._C._distributed_c10d._get_work_registry_size
    x = torch.ones(3, device=device)
    with funcol.allow_inflight_collective_as_graph_input_ctx():
        for wait in ("wait", "synchronize"):
            work = dist.all_reduce(x, async_op=True)
            assert kept() == 1
            getattr(work, wait)()
            assert kept() == 0
        dist.all_reduce(x, async_op=True)
        funcol.wait_tensor(x)
        assert kept() == 0
