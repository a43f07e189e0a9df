"""What the traces of ranks show of collectives on cards, read back, and as one file."""

import itertools
import json
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from newer_names import all_gather_single, reduce_scatter_single
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function
from traces import Slice, Trace

from vccl.merge_traces import main as merge_traces

ACTIVITIES = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
STEPS = 2


def is_collective(run: Slice) -> bool:
    return "bus bandwidth (GB/s)" in run.args


def traced(path: str, run: Callable[[], object]) -> Trace:
    with profile(activities=ACTIVITIES) as profiler:
        run()
    profiler.export_chrome_trace(path)
    return Trace(path)


# ---- two steps of DDP


class Held:
    """Holds each step's backward, before its last layer, until the first bucket has been summed.

    So it does not depend on time that a collective overlaps the backward.
    """

    def __init__(self) -> None:
        self.buckets: list[tuple[int, dist.Work]] = []
        self.begun = 0  # buckets of earlier steps

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future:
        buffer = bucket.buffer().div_(dist.get_world_size())
        work = dist.all_reduce(buffer, async_op=True)
        self.buckets.append((buffer.nbytes, work))
        return work.get_future().then(lambda future: future.value()[0])

    def wait(self, gradient: torch.Tensor) -> None:
        if self.begun == 0:
            return  # in its first step DDP has one bucket
        (_, first), *_ = self.buckets[self.begun :]
        deadline = time.monotonic() + 120
        while not first.is_completed():
            assert time.monotonic() < deadline, "the first bucket was not summed"
            time.sleep(0.001)


def two_steps(rank: int, size: int, folder: str) -> list[int]:
    """Writes a trace, and returns the bytes of each step's buckets."""
    device = torch.accelerator.current_accelerator().type
    torch.manual_seed(0)
    first, *others = (torch.nn.Linear(512, 512) for _ in range(3))
    held = Held()

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.others = first, torch.nn.Sequential(*others)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            hidden.register_hook(held.wait)
            return self.others(hidden)

    net = DistributedDataParallel(Net().to(device), bucket_cap_mb=1)
    net.register_comm_hook(None, lambda _, bucket: held.reduce(bucket))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.randn(8, 512, device=device)

    def step() -> None:
        held.begun = len(held.buckets)
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()  # makes the communicator, and DDP orders its buckets anew
    step()
    with profile(activities=ACTIVITIES) as profiler:
        for number in range(STEPS):
            with record_function(f"step {number}"):
                step()
    profiler.export_chrome_trace(f"{folder}/rank{rank}.json")
    return [nbytes for nbytes, _ in held.buckets[held.begun :]]


def check_steps(trace: Trace, rank: int, buckets: list[int]) -> None:
    """Checks what one rank's trace shows of its two steps."""
    collectives = [run for run in trace.runs() if is_collective(run)]
    operators = [run for run in trace.runs() if not is_collective(run)]
    # A lane for the stream of the operators, and one for the communicator.
    (lane,) = {run.lane for run in operators}
    (own_lane,) = {run.lane for run in collectives}
    assert trace.lanes[lane] == "stream 0"
    assert own_lane != lane and "default_pg" in trace.lanes[own_lane]
    for runs in (operators, collectives):
        assert all(run.end <= following.begin for run, following in itertools.pairwise(runs))
    # Bytes and bandwidths.
    assert len(buckets) > 1
    assert [run.args["bytes"] for run in collectives] == buckets * STEPS
    for run in collectives:
        # With 2 ranks the bus carries 2 * (2 - 1) / 2 of the bytes.
        expected = pytest.approx(run.args["bytes"] / run.duration, rel=0.01)
        assert run.args["bus bandwidth (GB/s)"] == expected
        assert run.args["algorithm bandwidth (GB/s)"] == expected
        assert (run.args["Group size"], run.args["Rank"]) == (2, rank)
        assert run.args["In msg nelems"] == run.args["Out msg nelems"] == run.args["bytes"] // 4
    # Launch arrows: all runs have one, from a launch that comes first.
    launches = {run: launch for launch, run in trace.arrows()}
    assert launches.keys() == set(trace.runs())
    assert all(launch.begin <= run.begin for run, launch in launches.items())
    # The first collective of each step lies between two operators of the backward, which autograd's thread
    # launches, as it does the collective.
    (backward_thread,) = {launches[run].lane for run in collectives}
    steps = [one for one in trace.of("gpu_user_annotation") if one.name.startswith("step")]
    assert sorted(one.name for one in steps) == [f"step {n}" for n in range(STEPS) for _ in "ab"]
    for number in range(STEPS):
        on_stream, on_communicator = (
            next(one for one in steps if one.name == f"step {number}" and one.lane == where)
            for where in (lane, own_lane)
        )
        backward = [run for run in operators if launches[run].lane == backward_thread]
        backward = [run for run in backward if on_stream.encloses(run)]
        reduced = next(run for run in collectives if on_communicator.encloses(run))
        assert backward[0].end <= reduced.begin < reduced.end <= backward[-1].begin


def assert_together(merged: Trace) -> list[Slice]:
    """Checks that no rank ends a collective before the other has begun it. Returns those of rank 0."""
    by_rank: list[list[Slice]] = [[], []]
    for run in merged.runs():
        if is_collective(run):
            assert merged.processes[run.lane[0]].startswith(f"rank {run.args['Rank']}: ")
            by_rank[run.args["Rank"]].append(run)
    for ours, theirs in zip(*by_rank, strict=True):
        assert ours.args["Seq"] == theirs.args["Seq"]
        # Each trace's clock is read to some ten ns, which is less than a collective takes.
        assert max(ours.begin, theirs.begin) <= min(ours.end, theirs.end) + 500
    return by_rank[0]


def test_two_steps_of_ddp(rank_pool, tmp_path):
    paths = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    buckets = rank_pool.run(2, two_steps, str(tmp_path))
    assert buckets[0] == buckets[1]
    for rank, path in enumerate(paths):
        check_steps(Trace(path), rank, buckets[rank])

    merged_path = tmp_path / "all.json"
    assert merge_traces([*map(str, paths), "-o", str(merged_path)]) == 0
    merged = Trace(merged_path)
    assert merged.content["clocks"] == "all times are of one clock"
    assert len(assert_together(merged)) == STEPS * len(buckets[0])

    # The same, if the ranks' clocks were a second apart.
    content = json.loads(paths[1].read_text())
    content |= {"vccl_clock": "another", "host_name": "elsewhere"}
    content["baseTimeNanoseconds"] += 10**9
    paths[1].write_text(json.dumps(content))
    assert merge_traces([*map(str, paths), "-o", str(merged_path)]) == 0
    moved = Trace(merged_path)
    assert "those of host elsewhere were moved by -" in moved.content["clocks"]
    assert_together(moved)
    assert len(merged.arrows()) == sum(len(Trace(path).arrows()) for path in paths)


# ---- each collective


def collectives(size: int, device: str) -> dict[str, tuple[Callable[[], object], int, float]]:
    """By name: a call, the bytes of the longest buffer, and the part of them on the busiest link."""
    x, y = torch.ones(1024 * size, device=device), torch.empty(1024 * size, device=device)
    part = torch.ones(1024, device=device)
    small, large = 4 * 1024, 4 * 1024 * size
    share = (size - 1) / size
    chunks = lambda tensor: list(tensor.chunk(size))  # noqa: E731
    root = dist.get_rank() == 0
    return {
        "all_reduce": (lambda: dist.all_reduce(x), large, 2 * share),
        "broadcast": (lambda: dist.broadcast(part, 0), small, 1.0),
        "reduce": (lambda: dist.reduce(part, 0), small, 1.0),
        "all_gather_into_tensor": (lambda: all_gather_single(y, part), large, share),
        "all_gather": (lambda: dist.all_gather(chunks(y), part), large, share),
        "reduce_scatter_tensor": (lambda: reduce_scatter_single(part, x), large, share),
        "all_to_all_single": (lambda: dist.all_to_all_single(y, x), large, share),
        "gather": (lambda: dist.gather(part, chunks(y) if root else None), large, share),
        "scatter": (lambda: dist.scatter(part, chunks(x) if root else None), large, share),
    }


@pytest.mark.ranks(3)
def test_bytes_and_bandwidths(ranks, tmp_path):
    calls = collectives(ranks.size, ranks.device)
    for run, *_ in calls.values():
        run()
    trace = traced(f"{tmp_path}/{ranks.rank}.json", lambda: [run() for run, *_ in calls.values()])
    found = [run for run in trace.runs() if is_collective(run)]
    assert len(found) == len(calls)
    for run, (name, (_, nbytes, factor)) in zip(found, calls.items(), strict=True):
        assert run.name.endswith(name)
        assert run.args["bytes"] == nbytes
        assert run.args["algorithm bandwidth (GB/s)"] == pytest.approx(nbytes / run.duration, rel=0.01)
        assert run.args["bus bandwidth (GB/s)"] == pytest.approx(factor * nbytes / run.duration, rel=0.01)
        assert run.args["dtype"] == "Float" and run.args["Process Group Ranks"] == "[0, 1, 2]"
        # Without async_op a collective is on the caller's stream.
        assert trace.lanes[run.lane] == "stream 0"
    assert [run.args["Seq"] for run in found] == list(range(found[0].args["Seq"], found[0].args["Seq"] + 9))


@pytest.mark.ranks(2)
def test_groups_have_lanes_of_their_own(ranks, tmp_path):
    x = torch.ones(8, device=ranks.device)
    groups = [dist.new_group(group_desc=name) for name in ("tensor", "pipeline")]

    def run() -> None:
        for group in groups:
            dist.all_reduce(x, group=group, async_op=True).wait()

    run()
    trace = traced(f"{tmp_path}/{ranks.rank}.json", run)
    found = [run for run in trace.runs() if is_collective(run)]
    lanes = [trace.lanes[run.lane] for run in found]
    assert ["tensor" in lanes[0], "pipeline" in lanes[1]] == [True, True]
    assert [run.args["Process Group Description"] for run in found] == ["tensor", "pipeline"]


@pytest.mark.ranks(2)
def test_coalesced_calls_are_one_run(ranks, tmp_path):
    x, y = torch.ones(8, device=ranks.device), torch.ones(24, device=ranks.device)

    def run() -> None:
        with dist._coalescing_manager(async_ops=True) as calls:
            dist.all_reduce(x)
            dist.all_reduce(y)
        calls.wait()

    run()
    trace = traced(f"{tmp_path}/{ranks.rank}.json", run)
    (found,) = [run for run in trace.runs() if is_collective(run)]
    assert found.args["bytes"] == 32 * 4
    assert found.args["bus bandwidth (GB/s)"] == pytest.approx(32 * 4 / found.duration, rel=0.01)


@pytest.mark.ranks(2)
def test_collectives_of_cpu_tensors_are_beside_the_threads(ranks, tmp_path):
    x = torch.ones(8)
    dist.all_reduce(x)
    with profile(activities=ACTIVITIES) as profiler:
        dist.all_reduce(x)
    profiler.export_chrome_trace(f"{tmp_path}/{ranks.rank}.json")
    trace = Trace(f"{tmp_path}/{ranks.rank}.json")
    assert trace.runs() == []  # no card has done anything
    (found,) = trace.of("privateuse1_driver", "cuda_driver")
    assert found.args["bytes"] == 32 and found.args["Collective name"] in ("all_reduce", "allreduce")
    assert "cpu" in trace.lanes[found.lane]
    assert all(event.self_device_time_total == 0 for event in profiler.key_averages())


@pytest.mark.ranks(2)
def test_without_the_host_a_collective_says_by_itself_what_it_is(ranks, tmp_path):
    x = torch.ones(8, device=ranks.device)
    dist.all_reduce(x)
    with profile(activities=[ProfilerActivity.PrivateUse1]) as profiler:
        dist.all_reduce(x)
    profiler.export_chrome_trace(f"{tmp_path}/{ranks.rank}.json")
    (found,) = Trace(f"{tmp_path}/{ranks.rank}.json").runs()
    wanted = {"Group size": 2, "In msg nelems": 8, "dtype": "Float", "bytes": 32, "Rank": ranks.rank}
    assert wanted.items() <= found.args.items()


@pytest.mark.ranks(2)
def test_the_collectives_of_a_replay_are_parts_of_it(ranks, tmp_path):
    x = torch.ones(256, device=ranks.device)
    dist.all_reduce(x)
    graph, stream = torch.accelerator.Graph(), torch.Stream(device=ranks.device)
    with stream:
        graph.capture_begin()
        dist.all_reduce(x)
        graph.capture_end()
    trace = traced(f"{tmp_path}/{ranks.rank}.json", graph.replay)
    replay, reduced = trace.runs()
    assert replay.name == "graph replay" and replay.lane == reduced.lane and replay.encloses(reduced)
    assert reduced.args["bytes"] == 1024
    assert [run for _, run in trace.arrows()] == [replay]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("device", ["vdev", "cpu"])
def test_messages_are_on_lanes_of_their_peers(ranks, device, tmp_path):
    x, other = torch.ones(1000, device=device), 1 - ranks.rank

    def run() -> None:
        # A rank's sends are under way at a time: the other rank receives the second one first.
        tags = (1, 2) if ranks.rank == 0 else (2, 1)
        works = [dist.isend(x, other, tag=tag) for tag in tags]
        works += [dist.irecv(torch.empty_like(x), other, tag=tag) for tag in reversed(tags)]
        for work in works:
            work.wait()
        operations = [dist.P2POp(kind, torch.empty_like(x), other) for kind in (dist.isend, dist.irecv)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    run()
    trace = traced(f"{tmp_path}/{ranks.rank}.json", run)
    found = [one for one in trace.of("kernel", "privateuse1_driver", "cuda_driver") if is_collective(one)]
    for verb, kind in (("send to", "send"), ("receive from", "recv")):
        (lane,) = [lane for lane, name in trace.lanes.items() if f"{verb} rank {other}" in name]
        messages = [one for one in found if one.lane == lane]
        assert len(messages) == 3
        for message, following in itertools.pairwise(messages):
            assert message.end <= following.begin
        for message in messages:
            assert message.name.endswith(kind) and message.args["bytes"] == 4000
            # Nothing but its own time bounds a message's bandwidth: the bus carries it once.
            expected = pytest.approx(4000 / message.duration, rel=0.01)
            assert message.args["bus bandwidth (GB/s)"] == expected
    assert len(found) == 6
    ends = [run for _, run in trace.arrows()]
    assert all(message in ends for message in found)
