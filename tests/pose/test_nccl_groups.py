"""What programs ask groups of "nccl" for beside collectives: numbers, splits, options, times and records.

The calls are those of torch's own tests of ProcessGroupNCCL (docs/inside/nccl.md). `run.py` beside this file
runs them in pose.
"""

import copy
import datetime
import json
import pickle

import pytest
import torch
import torch.distributed as dist

if not torch.cuda.is_available():
    pytest.skip("needs cards that pose as CUDA: make test-cuda", allow_module_level=True)

from torch._C import _distributed_c10d as compiled
from torch._C._distributed_c10d import ErrorType
from torch.distributed import distributed_c10d as c10d

from vccl.testing import GROUP_TIMEOUT

TIMEOUT = datetime.timedelta(seconds=GROUP_TIMEOUT)
UNSET = -(2**31)


def card(rank: int) -> torch.device:
    return torch.device("cuda", rank)


def start(rank, size, store, **options):
    """Makes the default group, and returns its backend."""
    dist.init_process_group("nccl", store=store, rank=rank, world_size=size, **{"timeout": TIMEOUT} | options)
    return backend_of(dist.group.WORLD, rank)


def backend_of(group, rank):
    return group._get_backend(card(rank))


def numbered(rank, size, store):
    default = start(rank, size, store)
    other = dist.new_group([0, 1])
    numbers = [c10d._get_process_group_uid(group) for group in (dist.group.WORLD, other)]
    assert numbers[1] == numbers[0] + 1 and default.uid == numbers[0]


def test_groups_have_numbers(rank_pool):
    rank_pool.run(2, numbered, group=False)


def counting_splits(rank, size, store):
    default = start(rank, size, store, device_id=card(rank))
    dist.new_group([0, 1])
    assert default.comm_split_count() == 1
    # NCCL splits the communicator on the ranks that are not in the group, too.
    dist.new_group([0])
    assert default.comm_split_count() == 2
    dist.split_group(split_ranks=[[0, 1]])
    assert default.comm_split_count() == 3


def counting_none(rank, size, store):
    default = start(rank, size, store)
    assert not default._is_initialized()
    group = dist.new_group([0, 1], device_id=card(rank))
    dist.broadcast(torch.ones(1, device=card(rank)), 0, group=group)
    assert not default._is_initialized() and backend_of(group, rank)._is_initialized()
    assert default.comm_split_count() == 0
    dist.all_reduce(torch.ones(1, device=card(rank)))
    assert default._is_initialized()


@pytest.mark.parametrize("case", [counting_splits, counting_none])
def test_splits_are_counted(rank_pool, case):
    rank_pool.run(2, case, group=False)


def test_options_are_copied_with_their_config():
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    assert options.config.min_ctas == dist.ProcessGroupNCCL.NCCLConfig().min_ctas == UNSET
    options._timeout = TIMEOUT
    options.config.max_ctas = 4
    for make in (copy.copy, copy.deepcopy):
        made = make(options)
        assert isinstance(made, dist.ProcessGroupNCCL.Options)
        assert (made.is_high_priority_stream, made._timeout, made.config.max_ctas) == (True, TIMEOUT, 4)
        made.config.max_ctas = 8
        assert options.config.max_ctas == 4


def with_config(rank, size, store):
    options = dist.ProcessGroupNCCL.Options()
    options.config.blocking = 0
    default = start(rank, size, store, device_id=card(rank), pg_options=options)
    split = dist.split_group(split_ranks=[[0, 1]])
    assert default.options.config.blocking == backend_of(split, rank).options.config.blocking == 0
    if rank == 1:
        return
    changed = dist.ProcessGroupNCCL.Options()
    changed.is_high_priority_stream = True
    changed.config.blocking = 1
    shrunk = backend_of(dist.shrink_group([1], pg_options=changed), rank)
    assert shrunk.options.is_high_priority_stream and shrunk.options.config.blocking == 1


def test_groups_keep_the_config_of_their_options(rank_pool):
    rank_pool.run(2, with_config, group=False)


def entries_of_trace(**options):
    return pickle.loads(compiled._dump_nccl_trace(**options))["entries"]


def given_more_time(rank, size, store):
    start(rank, size, store, timeout=datetime.timedelta(seconds=1000))
    x = torch.ones(3, device=card(rank))
    dist.all_reduce(x)
    c10d._add_ephemeral_timeout_for_all_pgs(datetime.timedelta(seconds=100))
    dist.all_reduce(x)
    torch.cuda.synchronize(card(rank))
    dist.all_reduce(x)
    torch.cuda.synchronize(card(rank))
    assert [entry["timeout_ms"] for entry in entries_of_trace()[-3:]] == [1_000_000, 1_100_000, 1_000_000]


def test_more_time_for_one_operation(rank_pool):
    rank_pool.run(2, given_more_time, group=False)


def traced(rank, size, store, timed):
    default = start(rank, size, store)
    group = dist.new_group([1, 0], group_desc="both")
    compiled._reset_fr_recording_nccl()
    assert entries_of_trace() == []
    if timed:
        dist.group.WORLD._enable_collectives_timing()
    for _ in range(2):
        dist.all_reduce(torch.ones(3, 4, device=card(rank)))
    torch.cuda.synchronize(card(rank))
    trace = pickle.loads(compiled._dump_nccl_trace())
    assert trace["comm_lib_version"] == ".".join(map(str, torch.cuda.nccl.version()))
    assert trace["pg_config"]["0"] == {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}
    assert trace["pg_config"][group.group_name]["desc"] == "both"
    number = str(trace["entries"][-1]["pg_id"])
    status = trace["pg_status"][number]
    last = default._get_sequence_number_for_group()
    assert status["last_enqueued_collective"] == status["last_completed_collective"] == last
    assert status["last_started_collective"] == (last if timed else -1)
    first, second = trace["entries"]
    assert (first["record_id"], second["record_id"]) == (0, 1)
    assert second["profiling_name"] == "nccl:all_reduce" and second["input_sizes"] == [[3, 4]]
    assert first["pg_id"] == second["pg_id"] and second["state"] == "completed"
    assert ("duration_ms" in second) == timed
    assert (second["time_discovered_started_ns"] is not None) == timed
    as_json = json.loads(compiled._dump_nccl_trace_json())
    assert as_json["pg_status"][number]["last_started_collective"] == (str(last) if timed else "-1")
    assert [entry["record_id"] for entry in as_json["entries"]] == [0, 1]
    assert "entries" not in json.loads(compiled._dump_nccl_trace_json(onlyActive=True))
    assert "entries" not in pickle.loads(compiled._dump_nccl_trace(includeCollectives=False))
    assert entries_of_trace(onlyActive=True) == []
    compiled._reset_fr_recording_nccl()
    dist.barrier()
    torch.cuda.synchronize(card(rank))
    (entry,) = entries_of_trace()
    assert (entry["record_id"], entry["profiling_name"]) == (0, "nccl:all_reduce_barrier")


def traced_message(rank, size, store):
    start(rank, size, store)
    compiled._reset_fr_recording_nccl()
    x = torch.ones(5, device=card(rank))
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
    torch.cuda.synchronize(card(rank))
    (entry,) = entries_of_trace()
    assert entry["profiling_name"] == ("nccl:send 0->1" if rank == 0 else "nccl:recv 1<-0")
    assert entry["input_sizes"] == entry["output_sizes"] == [[5]]
    assert entry["input_dtypes"] == entry["output_dtypes"] == ["Float"]


def test_trace_of_a_message(rank_pool):
    rank_pool.run(2, traced_message, group=False)


@pytest.mark.parametrize("timed", [True, False])
def test_trace_of_nccl(rank_pool, timed):
    rank_pool.run(2, traced, timed, group=False)


def timed_by_variable(rank, size, store):
    assert start(rank, size, store)._timing


def test_the_variable_asks_for_times(rank_pool):
    rank_pool.run(2, timed_by_variable, group=False, env={"TORCH_NCCL_ENABLE_TIMING": "1"})


def failing_for_one_rank(rank, size, store):
    backend = start(rank, size, store)
    assert backend.get_error() == ErrorType.SUCCESS
    dist.barrier(device_ids=[rank])
    if rank == 0:
        backend._set_default_timeout(datetime.timedelta(milliseconds=100))
        with pytest.raises(dist.DistBackendError, match="waited 100 ms"):
            dist.all_reduce(torch.ones(3, device=card(rank)))
            torch.cuda.synchronize(card(rank))
        store.set("failed", "")
    else:
        store.wait(["failed"], TIMEOUT)
    assert backend.get_error() == (ErrorType.TIMEOUT if rank == 0 else ErrorType.REMOTE_ERROR)


def test_the_timeout_of_another_rank_is_a_remote_error(rank_pool):
    rank_pool.run(2, failing_for_one_rank, group=False)
