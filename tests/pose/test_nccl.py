"""The backend "nccl" of cards that pose as CUDA, on two ranks.

What a script does with it is what the tests of `tests/distributed` do with "vccl". Those of their functions
that use no CPU tensors are called here by name, in a group of "nccl"; what is NCCL's own follows. `run.py`
beside this file runs them in pose.
"""

import copy
import datetime
import importlib
import logging
import os
import pickle
import signal
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

if not torch.cuda.is_available():
    pytest.skip("needs cards that pose as CUDA: make test-cuda", allow_module_level=True)

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.multiprocessing import reductions
from torch.nn.parallel import DistributedDataParallel

from vccl.testing import GROUP_TIMEOUT

TIMEOUT = datetime.timedelta(seconds=GROUP_TIMEOUT)


def card(rank: int) -> torch.device:
    return torch.device("cuda", rank)


def start(rank, size, store, backend: str | None = "nccl", **options) -> None:
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT, **options)


def total(device: torch.device | str, group: dist.ProcessGroup | None = None) -> float:
    """The sum over the group of the global ranks plus one, by way of all_reduce."""
    x = torch.full((1000,), dist.get_rank() + 1.0, device=device)
    dist.all_reduce(x, group=group)
    assert x.eq(x[0]).all()
    return x[0].item()


def in_a_group_of_nccl(rank, size, store, module: str, function: str, *args) -> None:
    start(rank, size, store, device_id=card(rank))
    assert dist.get_backend() == "nccl"
    # pytest adds only the folders of which it has collected files.
    (file,) = Path(__file__).parents[1].glob(f"distributed/*/{module}.py")
    sys.path.append(str(file.parent))
    getattr(importlib.import_module(module), function)(rank, size, *args)


# These have dtypes, reductions, layouts or tags that NCCL has not.
BEYOND_NCCL = {
    "all_reduce_everything",
    "broadcast_everything",
    "all_gather_everything",
    "non_contiguous",
    "managed_mixture",
    "exchange_everything",
}


@pytest.mark.parametrize(
    "case",
    [
        ("test_collectives", "all_reduce_everything", "cuda"),
        ("test_collectives", "broadcast_everything", "cuda"),
        ("test_collectives", "all_gather_everything", "cuda"),
        ("test_collectives", "non_contiguous", "cuda"),
        ("test_collectives", "functional", "cuda"),
        ("test_collectives", "futures", "cuda"),
        ("test_collectives", "objects"),
        ("test_collectives", "barriers"),
        ("test_collectives", "streams"),
        ("test_coalescing", "shuffled_batches", "cuda"),
        ("test_coalescing", "managed_reductions", "cuda", False),
        ("test_coalescing", "managed_reductions", "cuda", True),
        ("test_coalescing", "managed_mixture", "cuda", True),
        ("test_messages", "exchange_everything", "cuda"),
        ("test_ddp", "together", "cuda", torch.float32),
        ("test_ddp", "together", "cuda", torch.float32, "fp16_compress_hook"),
        ("test_ddp", "together_with_unused", "cuda"),
        ("test_ddp", "with_power_sgd", "cuda"),
        ("test_parallelism", "with_fsdp1", "cuda", "FULL_SHARD"),
        ("test_parallelism", "with_fsdp2", "cuda", (2,)),
        ("test_parallelism", "with_divide_factor", "cuda", (2,)),
        ("test_parallelism", "with_mixed_precision", "cuda"),
        ("test_parallelism", "with_tensor_parallel", "cuda", True),
        ("test_parallelism", "redistributing", "cuda"),
        ("test_parallelism", "with_zero", "cuda"),
    ],
    ids=lambda case: "-".join(map(str, case[:2] + case[3:])).replace("test_", ""),
)
def test_what_vccl_does(rank_pool, case):
    env = {"VCCL_STRICT": "0"} if case[1] in BEYOND_NCCL else None
    rank_pool.run(2, in_a_group_of_nccl, *case, group=False, env=env)


def strict(rank, size, store, free):
    start(rank, size, store)
    group = dist.group.WORLD
    assert group._get_backend(card(rank))._is_strict != free
    x = torch.ones(4, dtype=torch.int16, device=card(rank))
    sparse = torch.eye(3, device=card(rank)).to_sparse()
    calls = [
        (TypeError, "data type is not supported for NCCL process group: Short", lambda: dist.all_reduce(x)),
        (RuntimeError, "NCCL does not support all_reduce with sparse", lambda: dist.all_reduce(sparse)),
        (ValueError, "only implemented for GLOO backend", lambda: dist.monitored_barrier()),
    ]
    for error, text, call in calls:
        if free:
            call()
        else:
            with pytest.raises(error, match=text) as caught:
                call()
            assert f"rank {rank} " in str(caught.value) and "VCCL_STRICT=0" in str(caught.value)
    options = dist.ProcessGroupNCCL.Options()
    options.blocking_wait = True
    if free:
        assert total(card(rank), dist.new_group([0, 1], pg_options=options)) == 3
    else:
        with pytest.raises(ValueError, match="Options has no blocking_wait"):
            dist.new_group([0, 1], pg_options=options)


@pytest.mark.parametrize("value", [None, "nccl", "0"])
def test_strict_unless_freedom_is_asked_for(rank_pool, value):
    rank_pool.run(2, strict, value == "0", group=False, env={"VCCL_STRICT": value} if value else None)


def refusing_cpu(rank, size, store):
    start(rank, size, store)
    with pytest.raises(RuntimeError, match=r"(?i)cpu"):
        dist.all_reduce(torch.ones(3))
    assert total(card(rank)) == 3


def test_cpu_tensors_are_refused(rank_pool):
    rank_pool.run(2, refusing_cpu, group=False)


def with_options(rank, size, store):
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options.config.min_ctas = 2
    start(rank, size, store, device_id=card(rank), pg_options=options)
    group = dist.group.WORLD
    assert isinstance(group._get_backend(card(rank)), dist.ProcessGroupNCCL)
    assert group._get_backend(card(rank)).options.is_high_priority_stream
    assert total(card(rank)) == 3

    everybody = dist.new_group([0, 1], pg_options=dist.ProcessGroupNCCL.Options(), timeout=TIMEOUT)
    assert dist.get_backend(everybody) == "nccl" and total(card(rank), everybody) == 3
    alone = [dist.new_group([other], backend="nccl") for other in range(size)][rank]
    assert total(card(rank), alone) == rank + 1
    split = dist.split_group(split_ranks=[[0], [1]])
    assert dist.get_backend(split) == "nccl" and total(card(rank), split) == rank + 1
    both = dist.split_group(split_ranks=[[0, 1]])
    assert total(card(rank), both) == 3


def test_options_and_groups(rank_pool):
    rank_pool.run(2, with_options, group=False)


def gloo_beside(rank, size, store):
    start(rank, size, store, "cpu:gloo,cuda:nccl")
    assert total(card(rank)) == total("cpu") == 3
    group = dist.group.WORLD
    assert isinstance(group._get_backend(card(rank)), dist.ProcessGroupNCCL)
    assert isinstance(group._get_backend(torch.device("cpu")), dist.ProcessGroupGloo)


def test_gloo_beside_it(rank_pool):
    rank_pool.run(2, gloo_beside, group=False)


def served_by_gloo(rank, size, store, bound):
    start(rank, size, store, **({"device_id": card(rank)} if bound else {}))
    group = dist.new_group([0, 1], backend="gloo", timeout=TIMEOUT)
    assert dist.get_backend(group) == "gloo"
    assert isinstance(group._get_backend(torch.device("cpu")), dist.ProcessGroupGloo)
    for device in (card(rank), "cpu"):
        assert total(device, group) == 3
        x = torch.full((2,), float(rank), device=device)
        dist.broadcast(x, 1, group=group)
        assert x.tolist() == [1.0, 1.0]
        parts = [torch.empty(2, device=device) for _ in range(size)]
        dist.all_gather(parts, torch.full((2,), float(rank), device=device), group=group)
        assert [part.tolist() for part in parts] == [[0.0] * 2, [1.0] * 2]
    # NCCL has no such dtype and no such reduction.
    bits = torch.tensor([3, 4 + rank], dtype=torch.int16, device=card(rank))
    dist.all_reduce(bits, dist.ReduceOp.BAND, group=group)
    assert bits.tolist() == [3, 4]
    objects = [None, None]
    dist.all_gather_object(objects, rank, group=group)
    assert objects == [0, 1]
    dist.barrier(group=group)
    dist.monitored_barrier(group=group, timeout=TIMEOUT)
    for call in (dist.send, dist.recv, dist.isend, dist.irecv):
        with pytest.raises(RuntimeError, match="a group of gloo sends no tensors of cuda, which is an error"):
            call(x.cuda(rank), 1 - rank, group=group)
    y = torch.full((2,), float(rank))
    (dist.send if rank == 0 else dist.recv)(y, 1 - rank, group=group)
    assert y.tolist() == [0.0, 0.0]
    dist.destroy_process_group(group)
    assert total(card(rank)) == 3


@pytest.mark.parametrize("strict", ["nccl", None])
@pytest.mark.parametrize("bound", [False, True], ids=["free", "bound"])
def test_gloo_serves_cards(rank_pool, bound, strict):
    rank_pool.run(2, served_by_gloo, bound, group=False, env={"VCCL_STRICT": strict} if strict else {})


def by_default(rank, size, store):
    """torch takes the accelerator's backend."""
    start(rank, size, store, None)
    assert total(card(rank)) == 3
    assert isinstance(dist.group.WORLD._get_backend(card(rank)), dist.ProcessGroupNCCL)


def test_no_backend_named(rank_pool):
    rank_pool.run(2, by_default, group=False)


def under_both_names(rank, size, store, backend):
    """DDP needs the group's default backend, which torch finds by name."""
    start(rank, size, store, backend)
    model = DistributedDataParallel(nn.Linear(4, 4).to(card(rank)), device_ids=[rank])
    model(torch.ones(2, 4, device=card(rank))).sum().backward()
    assert torch.equal(model.module.weight.grad.cpu(), torch.full((4, 4), 2.0))


@pytest.mark.parametrize("backend", ["cuda:vccl", "vccl", "cuda:nccl", "cpu:gloo,cuda:vccl", "gloo"])
def test_ddp_under_both_names(rank_pool, backend):
    rank_pool.run(2, under_both_names, backend, group=False)


def aborting(rank, size, store):
    start(rank, size, store, device_id=card(rank))
    assert total(card(rank)) == 3
    store.set(f"read {rank}", "")
    if rank == 0:  # for which nobody comes
        store.wait(["read 0", "read 1"], TIMEOUT)
        work = dist.all_reduce(torch.ones(1000, device=card(rank)), async_op=True)
        dist.distributed_c10d._abort_process_group()
        with pytest.raises(RuntimeError, match="abort"):
            work.wait()
            torch.cuda.synchronize()
        store.set("aborted", "")
    store.wait(["aborted"], TIMEOUT)


def test_abort(rank_pool):
    rank_pool.run(2, aborting, group=False)


def again(rank, size, store):
    for attempt in range(2):
        start(rank, size, dist.PrefixStore(str(attempt), store), device_id=card(rank))
        assert total(card(rank)) == 3
        dist.destroy_process_group()
        assert not dist.is_initialized()


def test_destroy_and_begin_again(rank_pool):
    rank_pool.run(2, again, group=False)


def checked(rank, size, store):
    level = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        start(rank, size, store)
        assert total(card(rank)) == 3
        # torch logs a hash of each object.
        objects = [None] * size
        dist.all_gather_object(objects, {"rank": rank})
        assert objects == [{"rank": 0}, {"rank": 1}]
        net = DistributedDataParallel(nn.Linear(4, 4, device=card(rank)), device_ids=[rank])
        net(torch.ones(2, 4, device=card(rank))).sum().backward()
        assert net.module.weight.grad.eq(2).all()
        with pytest.raises(RuntimeError, match="collectives"):
            dist.all_reduce(torch.ones(3 + rank, device=card(rank)))
        dist.destroy_process_group()
    finally:
        dist.set_debug_level(level)


def test_debug_level_detail(rank_pool):
    rank_pool.run(2, checked, group=False)


def inputs(rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(6, 3, 5, generator=generator)


def compressed(rank, size, store, wrapped):
    """The gradients travel as bfloat16: each rank's is halved and rounded, then their sum is."""
    start(rank, size, store, device_id=card(rank))
    torch.manual_seed(3)
    net = nn.Linear(5, 7)
    expected = 0
    for other in range(size):
        net.zero_grad()
        net(inputs(other)).square().sum().backward()
        expected = expected + (net.weight.grad.bfloat16() / size).float()
    net.zero_grad()
    net = DistributedDataParallel(net.to(card(rank)), device_ids=[rank])
    if wrapped:
        hook = default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook)
    else:
        hook = default_hooks.bf16_compress_hook
    net.register_comm_hook(None, hook)
    net(inputs(rank).to(card(rank))).square().sum().backward()
    got = net.module.weight.grad.cpu()
    assert torch.equal(got, got.bfloat16().float())  # it came as bfloat16
    torch.testing.assert_close(got, expected, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("wrapped", [False, True], ids=["hook", "wrapper"])
def test_bfloat16_hooks_of_ddp(rank_pool, wrapped):
    rank_pool.run(2, compressed, wrapped, group=False)


def normalised(rank, size, store):
    """SyncBatchNorm on every rank's part equals BatchNorm on the whole."""
    start(rank, size, store, device_id=card(rank))
    alone = nn.BatchNorm1d(3)
    whole = torch.cat([inputs(other) for other in range(size)])
    expected = alone(whole)
    weights = torch.linspace(-1, 1, whole.numel()).reshape(whole.shape)
    (expected * weights).sum().backward()

    net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(3)).to(card(rank))
    assert isinstance(net, nn.SyncBatchNorm)
    net = DistributedDataParallel(copy.deepcopy(net), device_ids=[rank])
    got = net(inputs(rank).to(card(rank)))
    # DDP takes the mean over the ranks.
    (got * weights.chunk(size)[rank].to(card(rank))).sum().mul(size).backward()
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(got.detach().cpu(), expected.detach().chunk(size)[rank], **close)
    torch.testing.assert_close(net.module.weight.grad.cpu(), alone.weight.grad, **close)
    torch.testing.assert_close(net.module.running_var.cpu(), alone.running_var, **close)


def test_sync_batch_norm(rank_pool):
    rank_pool.run(2, normalised, group=False)


def attending_with_uneven_heads(rank, size, store) -> None:
    start(rank, size, store, device_id=card(rank))
    mesh = init_device_mesh("cuda", (size,))
    query, key = torch.ones(2, 6, 6, 4), torch.ones(2, 3, 6, 4)
    q, k = (distribute_tensor(x.cuda().half(), mesh, [Shard(1)]) for x in (query, key))
    # torch shards the 3 heads of the keys into 2 and 1, which CUDA's kernel refuses too.
    if rank == 0:
        with pytest.raises(RuntimeError, match="2 heads of keys and values do not divide 3 heads of queries"):
            nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)


def test_attention_of_uneven_heads_in_pose(rank_pool):
    rank_pool.run(2, attending_with_uneven_heads, group=False)


def attending_with_a_sharded_mask(rank, size, store) -> None:
    start(rank, size, store, device_id=card(rank))
    mesh = init_device_mesh("cuda", (size,))
    plain = [
        torch.randn(2, 2, tokens, 4, generator=torch.Generator().manual_seed(9)) for tokens in (6, 12, 12)
    ]
    mask = torch.randn(6, 12, generator=torch.Generator().manual_seed(9))
    q, k, v, sharded = (distribute_tensor(x.cuda(), mesh, [Shard(0)]) for x in (*plain, mask))
    found = nn.functional.scaled_dot_product_attention(q, k, v, sharded)
    expected = nn.functional.scaled_dot_product_attention(*plain, mask)
    torch.testing.assert_close(found.full_tensor().cpu(), expected)


def test_attention_with_a_sharded_mask_in_pose(rank_pool):
    rank_pool.run(2, attending_with_a_sharded_mask, group=False)


def profiled(rank, size, store) -> None:
    start(rank, size, store, device_id=card(rank))
    x, parts = torch.ones(2, device=card(rank)), torch.empty(2 * size, device=card(rank))
    with torch.profiler.profile(record_shapes=True) as profile:
        dist.all_reduce(x)
        dist.all_gather_into_tensor(parts, x)
        dist.barrier()
    found = {event.name for event in profile.events()}
    assert found >= {"nccl:all_reduce", "nccl:_all_gather_base", "nccl:all_reduce_barrier"}
    assert not [name for name in found if name.startswith("vccl:")]


def test_names_in_profiles_are_those_of_nccl(rank_pool):
    rank_pool.run(2, profiled, group=False)


def waiting_on_the_host(rank, size, store, async_op: bool) -> None:
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    try:
        start(rank, size, store)
    finally:
        del os.environ["TORCH_NCCL_BLOCKING_WAIT"]
    x = torch.full((3,), rank + 1.0, device=card(rank))
    if rank == 0:
        # The other rank's card is busy until this rank has sent the word.
        store.set("released", "")
    else:
        torch.cuda._launch_host_func(lambda: store.wait(["released"], TIMEOUT))
    work = dist.all_reduce(x, async_op=async_op)
    if work is not None:
        work.wait()
    assert torch.cuda.current_stream().query()
    assert x.tolist() == [3.0, 3.0, 3.0]
    # A mismatch is raised by the call itself, and not by a later synchronization.
    with pytest.raises(RuntimeError, match="all_reduce"):
        dist.all_reduce(torch.ones(3 + rank, device=card(rank)))


@pytest.mark.parametrize("async_op", [False, True])
def test_blocking_wait(rank_pool, async_op):
    rank_pool.run(2, waiting_on_the_host, async_op, group=False)


def of_high_priority(rank, size, store) -> None:
    os.environ["TORCH_NCCL_HIGH_PRIORITY"] = "true"
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "perhaps"
    try:
        with pytest.raises(
            RuntimeError, match="TORCH_NCCL_BLOCKING_WAIT is 'perhaps'; allowed are y, yes, 1"
        ):
            start(rank, size, store)
        del os.environ["TORCH_NCCL_BLOCKING_WAIT"]
        start(rank, size, dist.PrefixStore("again", store))
    finally:
        del os.environ["TORCH_NCCL_HIGH_PRIORITY"]
    options = dist.group.WORLD._get_backend(card(rank)).options
    assert options.is_high_priority_stream
    assert not options.blocking_wait


def test_high_priority(rank_pool):
    rank_pool.run(2, of_high_priority, group=False)


# Nobody waits for the message, and the program is told nothing before it ends.
ENDED = """if True:
    import datetime, time, torch, torch.distributed as dist
    soon = datetime.timedelta(milliseconds=100)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, timeout=soon)
    dist.group.WORLD._get_backend(torch.device("cuda")).recv([torch.ones(3, device="cuda")], 0, 0)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    "variables",
    [
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
        {"NCCL_ASYNC_ERROR_HANDLING": "3"},
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_DESYNC_DEBUG": "yes"},
    ],
    ids=["abort and end", "end", "desync"],
)
def test_a_failure_that_nobody_waits_for_ends_the_process(run, variables):
    told = run([sys.executable, "-c", ENDED], env=variables, status=-signal.SIGABRT)
    assert "The process ends, because an operation has failed" in told
    assert "waited 100 ms for rank 0 to send message(float32, 3 elements)" in told


@pytest.mark.parametrize(
    "wanted, named, written",
    [("1", True, True), ("1", False, True), ("0", True, False), (None, True, True), (None, False, False)],
)
def test_the_dump_is_whole_when_the_process_ends(run, tmp_path, wanted, named, written):
    (tmp_path / "named").mkdir()
    variables = {
        "HOME": str(tmp_path),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": wanted,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(tmp_path / "named" / "rank_") if named else None,
    }
    run([sys.executable, "-c", ENDED], env=variables, status=-signal.SIGABRT)
    by_torch = tmp_path / ".cache" / "torch" / "comm_lib_trace_rank_0"
    dump = tmp_path / "named" / "rank_0" if named else by_torch
    assert dump.exists() == written
    if written:
        last = pickle.loads(dump.read_bytes())["entries"][-1]
        assert last["profiling_name"] == "nccl:recv 0<-0" and last["retired"]


PIPE = """
import os, pickle, sys, time
import torch, torch.distributed as dist

dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3, device="cuda"))
torch.cuda.synchronize()
pipe, dump = sys.argv[1] + "0.pipe", os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] + "0"
for request in "1\\n", "more than a line\\n" * 20:
    with open(pipe, "w") as written:
        written.write(request)
    deadline = time.monotonic() + 60
    while not os.path.exists(dump) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pickle.load(open(dump, "rb"))["entries"][-1]["profiling_name"] == "nccl:all_reduce"
    os.remove(dump)
dist.destroy_process_group()
assert not os.path.exists(pipe), "the pipe is still there"
"""


def test_a_pipe_asks_for_a_dump(run, tmp_path):
    prefix = str(tmp_path / "now_")
    variables = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": prefix,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(tmp_path / "rank_"),
    }
    os.mkfifo(prefix + "0.pipe")  # an earlier job has left it
    told = run([sys.executable, "-c", PIPE, prefix], env=variables)
    assert told.count("The flight recorder of rank 0 was written") == 2

    (tmp_path / "now_0.pipe").write_text("")
    told = run([sys.executable, "-c", PIPE, prefix], env=variables, status=1)
    assert f"asks for the pipe {prefix}0.pipe, but something that is no pipe is there" in told
    assert (tmp_path / "now_0.pipe").exists()
    variables["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] = str(tmp_path / "none" / "now_")
    assert "now_0.pipe, but No such file or directory; name" in run(
        [sys.executable, "-c", PIPE, prefix], env=variables, status=1
    )


def with_a_registered_pool(rank, size, store) -> None:
    start(rank, size, store, device_id=card(rank))
    backend = dist.group.WORLD._get_backend(card(rank))
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(4, device=card(rank))
    backend.register_mem_pool(pool)
    dist.all_reduce(x)
    backend.deregister_mem_pool(pool)
    assert x.tolist() == [2.0] * 4
    assert dist.ProcessGroupNCCL.get_build_nccl_version() == backend.get_runtime_nccl_version() == (2, 27, 5)
    with pytest.raises(NotImplementedError, match="does not estimate the time of collectives"):
        backend._start_time_estimate()


def test_a_pool_can_be_registered(rank_pool):
    rank_pool.run(2, with_a_registered_pool, group=False)


def destroyed_by_all(rank, size, store) -> None:
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
        start(rank, size, store)
    assert total(card(rank)) == 3
    if rank == 0:
        dist.broadcast(torch.ones(5192, device=card(rank)), 0)  # NCCL's root does not wait for the others
    dist.destroy_process_group()


def test_ranks_that_destroy_their_group_end_well(rank_pool):
    rank_pool.run(2, destroyed_by_all, group=False)


def options_with(**variables: str):
    """The options of a group that is made under these variables."""
    with pytest.MonkeyPatch.context() as changed:
        for name, value in variables.items():
            changed.setenv(name, value)
        store = dist.HashStore()
        return dist.ProcessGroupNCCL(store, 0, 1, dist.ProcessGroupNCCL.Options()).options


def failing(rank, size, store) -> None:
    def handling(**variables):
        options = options_with(**variables)
        return options._abort_after_failure, options._end_after_failure

    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    assert handling() == handling(**{name: "0"}) == (False, False)
    assert handling(**{name: "1"}) == (True, True)
    assert handling(**{name: "2"}) == (True, False)
    assert handling(**{name: "3"}) == (False, True)
    # torchrun sets 1 for every rank. A rank that waits on the host is told of the error.
    assert handling(**{name: "1", "TORCHELASTIC_RUN_ID": "none"}) == (False, False)
    assert handling(**{name: "3", "TORCH_NCCL_BLOCKING_WAIT": "1"}) == (False, False)
    assert handling(TORCH_NCCL_DESYNC_DEBUG="1") == (False, True)
    assert handling(**{name: "2", "NCCL_DESYNC_DEBUG": "1"}) == (True, False)
    with pytest.raises(RuntimeError, match=f"{name} is '4'; allowed are 0, 1, 2, 3"):
        options_with(**{name: "4"})
    with pytest.raises(RuntimeError, match="TORCH_NCCL_DESYNC_DEBUG is '2'; allowed are y, yes, 1"):
        options_with(TORCH_NCCL_DESYNC_DEBUG="2")


def without_subject(rank, size, store) -> None:
    for name in ("ENABLE_MONITORING", "ENABLE_TIMING", "RETHROW_CUDA_ERRORS"):
        options_with(**{f"TORCH_NCCL_{name}": "no"})
        with pytest.raises(RuntimeError, match=f"TORCH_NCCL_{name} is 'soon'; allowed are y, yes, 1"):
            options_with(**{f"TORCH_NCCL_{name}": "soon"})
    options_with(TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="480")
    for text in ("-1", "8m", "2147483648"):
        with pytest.raises(
            RuntimeError, match=f"HEARTBEAT_TIMEOUT_SEC is '{text}'; allowed are 0 to 2147483647 seconds"
        ):
            options_with(TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=text)
    with pytest.raises(ValueError, match='TORCH_NCCL_DUMP_ON_TIMEOUT is "soon"; allowed are y, yes'):
        options_with(TORCH_NCCL_DUMP_ON_TIMEOUT="soon")


def test_variables_without_a_subject_are_checked(rank_pool):
    rank_pool.run(1, without_subject, group=False)


def test_the_handling_of_errors_that_is_asked_for(rank_pool):
    rank_pool.run(1, failing, group=False)


def aborted_after_a_failure(rank, size, store, aborts: bool) -> None:
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2" if aborts else "0")
        start(rank, size, store)
    total(card(rank))
    if rank == 1:
        store.wait(["looked"], TIMEOUT)
        return
    group = dist.group.WORLD._get_backend(card(rank))
    x = torch.ones(3, device=card(rank))
    message = group.recv([x], 1, 0)
    options = dist.AllreduceOptions()
    options.timeout = datetime.timedelta(milliseconds=100)
    with pytest.raises(dist.DistBackendError, match="waited 100 ms"):
        group.allreduce([torch.ones(3, device=card(rank))], options).get_future_result().wait()
        torch.cuda.synchronize()
    if aborts:
        with pytest.raises(dist.DistBackendError, match="waited 100 ms"):
            message.wait(TIMEOUT)
    else:
        assert not message.is_completed()
    store.set("looked", "")


@pytest.mark.parametrize("aborts", [False, True])
def test_a_failure_aborts_the_group(rank_pool, aborts):
    # A strict card that synchronises waits for its messages, as with NCCL.
    rank_pool.run(2, aborted_after_a_failure, aborts, group=False, env={"VCCL_STRICT": "0"})


def on_hosts_of_nccl(rank, size, store, interface: str, refused: bool) -> None:
    os.environ["NCCL_HOSTID"] = f"host{rank}"
    os.environ["NCCL_SOCKET_IFNAME"] = interface
    try:
        if refused:
            with pytest.raises(dist.DistBackendError, match="matches no network interface"):
                start(rank, size, store)
        else:
            start(rank, size, store)
            assert total(card(rank)) == 3
    finally:
        del os.environ["NCCL_HOSTID"], os.environ["NCCL_SOCKET_IFNAME"]


@pytest.mark.parametrize("interface, refused", [("=lo", False), ("nosuchcard", True)])
def test_hosts_and_interfaces_of_nccl(rank_pool, interface, refused):
    rank_pool.run(2, on_hosts_of_nccl, interface, refused, group=False)


def test_debug_texts_of_nccl(run):
    code = """if True:
        import torch, torch.distributed as dist
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        dist.all_reduce(torch.ones(3, device="cuda"))
        dist.destroy_process_group()
    """
    told = "[vccl] rank 0 (default_pg): joined 1 ranks"
    assert told in run([sys.executable, "-c", code], env={"NCCL_DEBUG": "info"})
    for level in ("VERSION", "nothing"):
        assert told not in run([sys.executable, "-c", code], env={"NCCL_DEBUG": level})


def test_variables_of_nccl_are_named(run):
    code = f"import logging; logging.basicConfig(level={logging.INFO}); import torch"
    variables = {"NCCL_ALGO": "Ring", "NCCL_DEBUG": "WARN", "TORCH_NCCL_RANKS_PER_ROOT": "1"}
    told = run([sys.executable, "-c", code], env=variables)
    assert "INFO:vccl.cuda.nccl" in told
    assert "NCCL_ALGO, TORCH_NCCL_RANKS_PER_ROOT" in told
    assert "NCCL_DEBUG" not in told


def weights_by_arguments(rank, size, store) -> None:
    """vLLM, sglang and verl pass weights on so: they change the card among reduce_tensor's arguments."""
    start(rank, size, store)
    weights = {
        "plain": torch.full((1000,), rank + 1.0, device=card(rank)),
        "a view": torch.full((30, 40), rank + 1.0, device=card(rank)).t()[3:, ::2],
        "a parameter": nn.Parameter(torch.full((5,), rank + 1.0, device=card(rank))),
        "empty": torch.empty(0, 3, device=card(rank)),
    }
    everyones: list = [None] * size
    dist.all_gather_object(everyones, {name: reductions.reduce_tensor(x) for name, x in weights.items()})
    other = (rank + 1) % size
    for name, (function, arguments) in everyones[other].items():
        assert len(arguments) == 15 and arguments[6] == other
        changed = list(arguments)
        changed[6] = other
        received = function(*changed)
        mine = weights[name]
        assert received.device == card(other) and type(received) is type(mine)
        assert (received.shape, received.stride()) == (mine.shape, mine.stride())
        assert received.eq(other + 1).all()
        # The pair is also called by its function's own name, and more than once.
        assert torch.equal(reductions.rebuild_cuda_tensor(*arguments), received)
    dist.barrier()


def test_weights_by_arguments(rank_pool):
    rank_pool.run(2, weights_by_arguments, group=False)
