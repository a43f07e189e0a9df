"""The holes in torch that the backend's patches fill. A test that fails here says that its patch can go."""

import datetime
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from processes import wait_until
from torch import nn
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d as c10d
from torch.distributed import pipelining
from torch.distributed import run as torchrun
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import fake_pg  # noqa: F401  registers the fake backend
from torch_build import WITH_CUDA
from unpatched import unpatched

from vccl._torch_patches.registry import original
from vccl.testing.ports import reserved_port

TESTS = pathlib.Path(__file__).resolve().parents[2]
MINUTE = datetime.timedelta(minutes=1)
CLOSED = "later versions have no such hole"


def init(rank, size, store, backend="vccl", **options):
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, **options)
    return dist.group.WORLD


@pytest.mark.torch("<2.14", CLOSED)
@pytest.mark.ranks(1, group=False)
def test_hole_of_default_backend(ranks):
    with unpatched("default_backend"):
        group = init(ranks.rank, ranks.size, ranks.store, "cpu:gloo,vdev:vccl")
    with pytest.raises(RuntimeError, match="Could not find the default backend type"):
        group._register_on_completion_hook(print)


class Interrupted(Exception):
    pass


@pytest.mark.ranks(1, group=False)
def test_hole_of_rendezvous():
    """A signal arrives while torch's store waits for a rank that does not come."""

    def interrupt(number, frame):
        raise Interrupted

    def signal_once_it_serves(main, port):
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=10).close()
            except ConnectionRefusedError:
                continue
            return signal.pthread_kill(main, signal.SIGUSR1)

    previous = signal.signal(signal.SIGUSR1, interrupt)
    make = original("torch.distributed.rendezvous:_create_c10d_store")
    try:
        with reserved_port() as port, pytest.raises(Interrupted) as caught:
            arguments = (threading.get_ident(), port)
            thread = threading.Thread(target=signal_once_it_serves, args=arguments, daemon=True)
            thread.start()
            try:
                make("127.0.0.1", port, 0, 2, datetime.timedelta(seconds=2))
            except dist.DistError:
                thread.join()  # the handler runs here at the latest
    finally:
        signal.signal(signal.SIGUSR1, previous)
    # The handler has only run when the constructor had given up.
    assert isinstance(caught.value.__context__, dist.DistError)


SPLIT_AGAIN = """
import torch, torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # noqa: F401  registers the fake backend
from unpatched import unpatched
with unpatched("gloo_beside_vccl"):
    for life in range(2):
        options = dict(store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("vdev", 0))
        dist.init_process_group("cpu:gloo,vdev:vccl", **options)
        print("life", life, flush=True)
        if life == 1:
            dist.split_group(dist.group.WORLD, [[0]])
        dist.destroy_process_group()
"""


@pytest.mark.torch("<2.14", CLOSED)
def test_hole_of_gloo_beside_vccl(start):
    program = start([sys.executable, "-c", SPLIT_AGAIN], env={"PYTHONPATH": str(TESTS)})
    assert "life 1" in program.output(600)
    assert program.returncode == -signal.SIGSEGV, program.printed()


# The callback is in gloo's thread when the model ends, which owns the group. It reads from a pipe, and then
# needs the GIL.
LAST_OWNER = """
import contextlib, itertools, sys, threading
import torch, torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from unpatched import unpatched

made = []
gloo = c10d.ProcessGroupGloo

def make(*args, **kwargs):
    made.append(gloo(*args, **kwargs))
    return made[-1]

c10d.ProcessGroupGloo = make
begun = threading.Event()
main = threading.get_ident()
too_late = []

def callback(future):
    if threading.get_ident() == main:  # the operation had ended before
        return too_late.append(future)
    begun.set()
    open("pipe").read()

dist.set_debug_level(dist.DebugLevel.DETAIL)
with unpatched("debug_wrapper") if sys.argv[1] == "hole" else contextlib.nullcontext():
    dist.init_process_group("vccl", store=dist.HashStore(), rank=0, world_size=1)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
for calls in itertools.count():
    if len(too_late) < calls:
        break
    work = made[-1].allreduce([torch.ones(1 << 20)])
    work.get_future().then(callback)
begun.wait()
dist.destroy_process_group()
work = None
too_late.clear()
made.clear()
print("last line", flush=True)
del net
print("the end", flush=True)
"""


@pytest.mark.torch("<2.14", "the program did not hang with torch 2.14 and 2.15 in any run")
def test_hole_of_debug_wrapper(start, tmp_path):
    def end_model(way):
        program = start([sys.executable, "-c", LAST_OWNER, way], env={"PYTHONPATH": str(TESTS)})
        with open(tmp_path / "pipe", "w"):
            wait_until(lambda: "last line" in program.printed())
            wait_until(lambda: all(sleeps(program.pid) for _ in range(5)))
        return program

    def sleeps(pid):
        time.sleep(0.02)
        return pathlib.Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] == "S"

    os.mkfifo(tmp_path / "pipe")
    assert "the end" in end_model("filled").output(600)
    with pytest.raises(subprocess.TimeoutExpired):
        end_model("hole").wait(3)


@pytest.mark.ranks(2, group=False)
def test_hole_of_group_names(ranks):
    init(ranks.rank, ranks.size, ranks.store)
    names = [None] * ranks.size
    with unpatched("group_names"):
        if ranks.rank == 0:
            dist.new_group([0], use_local_synchronization=True)
        dist.all_gather_object(names, c10d._hash_ranks_to_str([0, 1]))
    assert names[0] != names[1]


def test_hole_of_group_descriptions():
    assert not [name for name in dir(torch._C._distributed_c10d._DistributedBackendOptions) if "desc" in name]


@pytest.mark.torch("<2.14", CLOSED)
@pytest.mark.ranks(1, group=False)
def test_hole_of_sequence_numbers(ranks):
    group = init(ranks.rank, ranks.size, ranks.store)
    with unpatched("sequence_numbers"):
        for ask in (group._get_sequence_number_for_group, group._set_sequence_number_for_group):
            with pytest.raises(RuntimeError, match="does not yet support sequence numbers"):
                ask()


@pytest.mark.ranks(1, group=False)
def test_hole_of_flight_recorder(ranks):
    init(ranks.rank, ranks.size, ranks.store)
    dist.all_reduce(torch.ones(1))
    with unpatched("flight_recorder"):
        assert b"all_reduce" not in _distributed_c10d._dump_fr_trace_json()
    assert b"all_reduce" in _distributed_c10d._dump_fr_trace_json()


@pytest.mark.ranks(2, group=False)
def test_hole_of_capabilities(ranks):
    init(ranks.rank, ranks.size, ranks.store, device_id=torch.device("vdev", ranks.rank))
    with unpatched("capabilities"):
        for backend in ("gloo", "fake"):
            with pytest.raises(RuntimeError, match="No backend type associated with device type vdev"):
                dist.new_group(backend=backend)


@pytest.mark.ranks(1, group=False)
def test_hole_of_timeouts(ranks):
    init(ranks.rank, ranks.size, ranks.store, timeout=MINUTE)
    with unpatched("timeouts"):
        assert dist.new_group()._get_backend(torch.device("vdev")).options._timeout > MINUTE


@pytest.mark.torch("<2.14", CLOSED)
@pytest.mark.ranks(1, group=False)
def test_set_pg_timeout_without_its_patch(ranks):
    group = init(ranks.rank, ranks.size, ranks.store, timeout=MINUTE)
    with unpatched("timeouts"), pytest.warns(UserWarning, match="only supported for either nccl or gloo"):
        c10d._set_pg_timeout(2 * MINUTE, group)
    assert group._get_backend(torch.device("vdev")).options._timeout == MINUTE


@pytest.mark.ranks(2, group=False)
def test_hole_of_split_lists(ranks):
    """Lists that differ are no error as long as each rank's own part is the same."""
    init(ranks.rank, ranks.size, ranks.store, device_id=torch.device("vdev", ranks.rank))
    with unpatched("split_lists"):
        alone = c10d.split_group(split_ranks=[[0], [1]] if ranks.rank == 0 else [[1]])
    assert alone.size() == 1


@pytest.mark.ranks(3, group=False)
def test_hole_of_shrink_group(ranks):
    init(ranks.rank, ranks.size, ranks.store)
    of_all = dist.new_group([1, 2])
    if ranks.rank != 2:
        return
    with unpatched("shrink_group"):
        shrunk = dist.shrink_group([0], of_all)
    assert dist.get_process_group_ranks(shrunk) == [1, 2]
    assert [device.type for device in shrunk._device_types] == ["cpu"]


@pytest.mark.torch("<2.14", CLOSED)
@pytest.mark.ranks(2, group=False)
def test_shrink_groups_of_cards_alone_without_the_patch(ranks):
    init(ranks.rank, ranks.size, ranks.store)
    of_cards = dist.new_group(backend="vdev:vccl")
    with unpatched("shrink_group"), pytest.raises(RuntimeError, match="Cannot access device backend"):
        dist.shrink_group([1 - ranks.rank], of_cards)


@pytest.mark.ranks(1, group=False)
def test_hole_of_monitored_barrier(ranks):
    group = init(ranks.rank, ranks.size, ranks.store)
    with unpatched("monitored_barrier"):
        # Torch before 2.14 refuses every backend but gloo. Later ones call the backend's function, and this
        # backend has none in C++.
        refusals = "only implemented for GLOO|does not support monitored_barrier"
        with pytest.raises((ValueError, NotImplementedError), match=refusals):
            dist.monitored_barrier(group)
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            dist.new_group(backend="vdev:vccl").monitored_barrier()


@pytest.mark.ranks(1, group=False)
def test_hole_of_coalescing(ranks):
    group = init(ranks.rank, ranks.size, ranks.store)
    with unpatched("coalescing"), pytest.raises(ZeroDivisionError), dist._coalescing_manager(group):
        dist.all_reduce(torch.ones(1))
        raise ZeroDivisionError
    assert len(c10d._world.pg_coalesce_state[group]) == 1
    c10d._world.pg_coalesce_state.pop(group)
    group._get_backend(torch.device("cpu"))._cancel_coalescing()


@pytest.mark.ranks(1, group=False)
def test_hole_of_ddp(ranks):
    init(ranks.rank, ranks.size, ranks.store)
    net = DistributedDataParallel(nn.Linear(3, 2).to("vdev"))
    with unpatched("ddp"):
        if not WITH_CUDA:  # which has NCCL, so that torch takes the hooks
            with pytest.raises(TypeError, match="BF16 all reduce communication hook required"):
                net.register_comm_hook(None, default_hooks.bf16_compress_hook)
        assert net._get_ddp_logging_data()["backend_name"] == "custom"


@pytest.mark.ranks(2)
def test_hole_of_ddp_content(ranks, monkeypatch):
    """DDP compares shapes at most, and with init_sync=False nothing."""
    from vccl import _C

    monkeypatch.setattr(_C, "_checks_content", lambda: True)
    net = nn.Linear(3, 2)
    for parameter in net.parameters():
        nn.init.constant_(parameter, ranks.rank)
    with unpatched("ddp_content"):
        DistributedDataParallel(net, init_sync=False)
    with pytest.raises(ValueError, match="weight and 1 other on rank 1 are not what rank 0 has"):
        DistributedDataParallel(net, init_sync=False)


@pytest.mark.ranks(1, group=False)
def test_hole_of_all_gather_backward(ranks):
    from torch.distributed.nn import functional

    group = init(ranks.rank, ranks.size, ranks.store)
    x = torch.ones(3, requires_grad=True)
    with unpatched("all_gather_backward"):
        y = functional._all_gather_base(torch.empty(3), x, group)
        with pytest.raises(RuntimeError, match="Backend not supported!"):
            y.sum().backward()


@pytest.mark.skipif(sys.version_info >= (3, 12, 7), reason="Python has closed this hole")
def test_hole_of_torchrun_abbreviations(capsys):
    with pytest.raises(SystemExit):
        torchrun.parse_args(["script.py", "--max", "64M"])
    assert "ambiguous option: --max" in capsys.readouterr().err


UNREGISTERED = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
x = distribute_tensor(torch.ones(2, 2, 4, 8), init_device_mesh("cpu", (2,)), [Shard(0)])
torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
"""


def test_hole_of_attention_sharding(start):
    program = start([sys.executable, "-c", UNREGISTERED], env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    output = program.output(600)
    assert program.returncode == 1
    assert "_scaled_dot_product_flash_attention_for_cpu" in output
    assert "does not have a sharding strategy registered" in output


def test_hole_of_objects_without_numpy(start):
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "objects = [None]\n"
        "dist.all_gather_object(objects, {'a': 1})\n"
        "assert objects == [{'a': 1}]\n"
        "dist.destroy_process_group()\n"
    )
    hole = start([sys.executable, "-c", code], env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert "RuntimeError: Numpy is not available" in hole.output(600)
    quiet = {"PYTHONWARNINGS": "ignore"}  # torch warns that numpy is missing
    filled = start([sys.executable, "-c", code.replace("import torch,", "import vccl, torch,")], env=quiet)
    assert (filled.output(600), filled.returncode) == ("", 0)


@pytest.mark.torch("<2.13", CLOSED)
@pytest.mark.ranks(1, group=False)
def test_hole_of_pipeline_generators(ranks):
    init(ranks.rank, ranks.size, ranks.store)
    stage = pipelining.PipelineStage(nn.Linear(3, 2).to("vdev"), 0, 1, torch.device("vdev", 0))
    schedule = pipelining.ScheduleGPipe(stage, 2)
    x = torch.ones(4, 3, device="vdev")
    with unpatched("pipeline_generators"), pytest.raises((AssertionError, RuntimeError), match="CUDA"):
        schedule.step(x)


@pytest.mark.torch(">=2.13", "vccl has symmetric memory from this version on")
@pytest.mark.skipif(WITH_CUDA, reason="the patch leaves a torch for GPUs alone")
@pytest.mark.ranks(1)
def test_hole_of_symmetric_memory(ranks):
    tensor = symmetric.empty(4, device=torch.device("vdev", 0))
    handle = symmetric.rendezvous(tensor, dist.group.WORLD)
    with unpatched("symmetric_memory"), pytest.raises(ValueError, match="unsupported backend: VCCL"):
        symmetric.put_signal(tensor, handle, 0)


@pytest.mark.torch(">=2.13", "vccl has symmetric memory from this version on")
@pytest.mark.skipif(WITH_CUDA, reason="the patch leaves a torch for GPUs alone")
def test_hole_of_micro_pipelining():
    from torch._inductor.fx_passes import micro_pipeline_tp

    nothing: Any = None
    with unpatched("micro_pipelining"):
        micro_pipeline_tp.fuse_all_gather_matmul(nothing)  # does not come to look at it
    with pytest.raises(AttributeError):
        micro_pipeline_tp.fuse_all_gather_matmul(nothing)
