"""Groups come and go, processes end with and without destroying them, and nothing stays behind."""

import atexit
import gc
import os
import pathlib
import sys
import time

import pytest
import torch
import torch.distributed as dist

from vccl._device_type import backend_name
from vccl.testing import CALL_TIMEOUT

CYCLES = int(os.environ.get("VCCL_TEST_CYCLES", "25"))


def footprint() -> dict[str, int]:
    gc.collect()
    self = pathlib.Path("/proc/self")
    lines = (self / "maps").read_text().splitlines()
    # The heap has a name, too, but is no file. In a forked process it is in several pieces, whose number
    # depends on when it grows.
    files = [line.partition("/")[2] for line in lines if "/" in line]
    return {
        "descriptors": len(os.listdir(self / "fd")),
        "threads": len(os.listdir(self / "task")),
        "mappings": len(lines) - len(files),
        **{f"mappings of /{name}": files.count(name) for name in files},
        "shared memory files": sum("vccl" in name for name in os.listdir("/dev/shm")),
    }


def grown_since(before: dict[str, int], slack: dict[str, int] | None = None) -> dict[str, tuple[int, int]]:
    """What there is more of than before. A thread that was joined may stay in /proc for a moment."""
    limit = time.monotonic() + 60
    while True:
        counts = {name: (before.get(name, 0), after) for name, after in footprint().items()}
        room = slack or {}
        grown = {name: (then, now) for name, (then, now) in counts.items() if now > then + room.get(name, 0)}
        if set(grown) != {"threads"} or time.monotonic() > limit:
            return grown
        time.sleep(0.01)


def resident_kib() -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


def cycles(rank, size, store, count):
    def cycle():
        # The same store and the same group name every time, as under torchrun.
        dist.init_process_group("vccl", store=store, rank=rank, world_size=size)
        for device in ("vdev", "cpu"):
            x = torch.ones(1000, device=device)
            dist.all_reduce(x)
            work = dist.all_reduce(x, async_op=True)
            work.wait()
            assert x.eq(size * size).all().item()
        dist.destroy_process_group()

    for _ in range(5):
        cycle()
    # The card outlives the groups, and so does its stream's worker, which starts when it is first needed.
    torch.vdev._launch_host_func(lambda: None)
    torch.vdev.synchronize()
    before, resident = footprint(), resident_kib()
    for _ in range(count):
        cycle()
    # The C library keeps the stacks and the arenas of as many threads as ever ran at once, and how many did
    # depends on when they ran. What leaks, leaks every cycle.
    assert grown_since(before, {"mappings": count // 2}) == {}
    return (resident_kib() - resident) / count


@pytest.mark.parametrize("hosts", [(), ("here", "there")], ids=["one_host", "two_hosts"])
def test_cycles_leave_nothing(rank_pool, hosts):
    growth = rank_pool.run(2, cycles, CYCLES, hosts=hosts, group=False, timeout=CALL_TIMEOUT + CYCLES)
    if CYCLES >= 500:
        assert max(growth) < 4, "KiB a cycle"


@pytest.mark.ranks(2)
def test_subgroups_leave_nothing():
    count = 12
    x = torch.ones(10)
    # Not synchronous: it starts the worker of the group that stays, which is not to count as growth later.
    dist.all_reduce(x, async_op=True).wait()
    dist.all_reduce(x)
    before = None
    for step in range(count):
        group = dist.new_group()
        dist.all_reduce(x, group=group)
        dist.destroy_process_group(group)
        del group
        if step == 3:
            before = footprint()
    assert not {"descriptors", "threads"} & grown_since(before, {"mappings": 1000}).keys()


@pytest.mark.ranks(2, group=False)
def test_dropped_groups_leave_nothing(ranks):
    """A group that is garbage-collected and never destroyed."""
    rank, size = ranks.rank, ranks.size
    from vccl._C import ProcessGroupVccl

    before = None
    for step in range(6):
        group = ProcessGroupVccl(dist.PrefixStore(str(step), ranks.store), rank, size)
        x = torch.ones(10)
        group.allreduce([x], dist.AllreduceOptions()).wait()
        assert x.eq(size).all()
        ranks.store.set(f"done_{step}_{rank}", "")
        ranks.store.wait([f"done_{step}_{other}" for other in range(size)])
        del group
        if step == 2:
            before = footprint()
    assert not {"descriptors", "threads"} & grown_since(before, {"mappings": 1000}).keys()


@pytest.mark.ranks(2)
def test_forked_child_leaves_the_group_alone(ranks):
    size = ranks.size
    x, y = torch.ones(10, device="vdev"), torch.ones(10)
    dist.all_reduce(x)
    dist.all_reduce(y)
    gc.collect()  # groups of other backends, gloo's for one, do not survive being freed in a forked child
    child = os.fork()
    if child == 0:
        status = 1
        try:
            dist.all_reduce(torch.ones(10))
        except dist.DistBackendError as error:
            status = 0 if "forked" in str(error) else 2
        # What an ordinary exit does.
        atexit._run_exitfuncs()
        dist.destroy_process_group()
        gc.collect()
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    # The parent's group is as it was.
    dist.all_reduce(x)
    dist.all_reduce(y)
    assert x.eq(size * size).all().item() and y.eq(size * size).all().item()


ENDINGS = [
    "idle",
    "pending",
    "pending on the current stream",
    "waiting for nobody",
    "exit status",
    "exception",
    "future",
    "waiting in a thread",
]

# Each ending in fresh processes, forked from one that has imported torch: that alone costs seconds.
ENDINGS_SCRIPT = """
import os, signal, sys, threading, time
import torch
import torch.distributed as dist
import vccl

def rank_main(rank, path, how):
    torch.accelerator.set_device_index(rank)
    dist.init_process_group("vccl", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    x = torch.ones(1000, device="vdev")
    y = torch.ones(1000)
    dist.all_reduce(x)
    dist.all_reduce(y)
    torch.accelerator.synchronize()
    if how == "pending":
        works = [dist.all_reduce(x, async_op=True) for _ in range(10)]
    elif how == "pending on the current stream":
        dist.all_reduce(x)
    elif how == "waiting for nobody" and rank == 0:
        works = [dist.all_reduce(x, async_op=True)]
        try:
            works.append(dist.all_reduce(y, async_op=True))
        except dist.DistBackendError:
            pass  # the other rank has left already, and the first call has found that
    elif how == "exit status":
        sys.exit(3)
    elif how == "exception" and rank == 0:
        raise RuntimeError("on purpose")
    elif how == "future":
        future = dist.all_reduce(y, async_op=True).get_future().then(lambda done: done.value())
    elif how == "waiting in a thread" and rank == 0:
        def wait():
            try:
                dist.all_reduce(y)
            except dist.DistBackendError:
                pass
        threading.Thread(target=wait, daemon=True).start()

def wait_for(pid):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "did not end"

for how in sys.argv[2:]:
    children = []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            rank_main(rank, os.path.join(sys.argv[1], how), how)
            sys.exit()  # through the interpreter's whole exit
        children.append(pid)
    print(how, *map(wait_for, children), sep="|", flush=True)
"""


@pytest.mark.daily
def test_exit_without_destroy(tmp_path, run):
    script = tmp_path / "script.py"
    script.write_text(ENDINGS_SCRIPT)
    path = os.pathsep.join(p for p in sys.path if p)
    output = run(
        [sys.executable, script, tmp_path, *ENDINGS],
        env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    status = {ending: (0, 0) for ending in ENDINGS} | {"exit status": (3, 3), "exception": (1, 0)}
    for ending in ENDINGS:
        assert f"{ending}|{status[ending][0]}|{status[ending][1]}\n" in output, output
    assert output.count("Traceback") == 1 and "terminate" not in output, output
    assert not [name for name in os.listdir("/dev/shm") if "vccl" in name]


TORCHRUN_SCRIPT = r"""
import os, sys
import torch
import torch.distributed as dist
import vccl

for _ in range(int(sys.argv[1])):
    dist.init_process_group("vccl")
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    x = torch.ones(10, device="vdev")
    dist.all_reduce(x)
    assert x.eq(dist.get_world_size()).all().item()
    dist.barrier()
    dist.destroy_process_group()
os.write(1, f"rank {os.environ['RANK']} done\n".encode())  # in one piece: the ranks share the terminal
"""


# DETAIL brings gloo into the group, which cannot be made twice over one store.
DEBUG = {"VDEV_LAUNCH_BLOCKING": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}


@pytest.mark.parametrize(("count", "variables"), [(3, {}), (1, DEBUG)], ids=["plain", "debug"])
def test_torchrun(tmp_path, run, count, variables):
    """One store for several groups of the same name, one after the other."""
    script = tmp_path / "script.py"
    script.write_text(TORCHRUN_SCRIPT)
    path = os.pathsep.join(p for p in sys.path if p)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    env = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}
    output = run([*torchrun, script, count], env=env)
    assert "rank 0 done" in output and "rank 1 done" in output


def use_ddp(device, name="custom"):
    """DDP asks the group for its default backend, which has this name."""
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3).to(device))
    net(torch.ones(2, 3, device=device)).sum().backward()
    assert dist.group.WORLD.name() == name


def no_arguments(rank, size, store):
    """init_process_group() without a backend takes the accelerator's."""
    dist.init_process_group(store=store, rank=rank, world_size=size)
    x = torch.ones(3, device="vdev")
    dist.all_reduce(x)
    assert x.eq(size).all().item()
    assert dist.group.WORLD._get_backend(torch.device("vdev"))._get_backend_name() == backend_name()
    use_ddp("vdev", "nccl" if backend_name() == "nccl" else "custom")
    dist.destroy_process_group()


def mixed_backends(rank, size, store):
    dist.init_process_group("cpu:gloo,vdev:vccl", store=store, rank=rank, world_size=size)
    for device in ("cpu", "vdev"):
        x = torch.ones(3, device=device)
        dist.all_reduce(x)
        assert x.eq(size).all().item()
        use_ddp(device)
    dist.destroy_process_group()


def bound_device(rank, size, store):
    device = torch.device("vdev", rank)
    dist.init_process_group("vccl", store=store, rank=rank, world_size=size, device_id=device)
    x = torch.ones(3, device=device)
    dist.all_reduce(x)
    dist.barrier()
    sub = dist.new_group([0])
    if rank == 0:
        dist.all_reduce(x, group=sub)
    assert x.eq(size).all().item()
    dist.destroy_process_group()


def own_options(rank, size, store):
    from vccl._C import ProcessGroupVccl

    options = ProcessGroupVccl.Options(is_high_priority_stream=True)
    dist.init_process_group("vccl", store=store, rank=rank, world_size=size, pg_options=options)
    x = torch.ones(3, device="vdev")
    dist.all_reduce(x, async_op=True).wait()
    assert x.eq(size).all().item()
    with pytest.raises(TypeError, match="pg_options"):
        dist.new_group(backend="vccl", pg_options=torch._C._distributed_c10d.Backend.Options("gloo"))
    dist.destroy_process_group()


@pytest.mark.ranks(2, group=False)
@pytest.mark.parametrize("way", [no_arguments, mixed_backends, bound_device, own_options])
def test_ways_to_make_a_group(ranks, way):
    way(ranks.rank, ranks.size, ranks.store)
