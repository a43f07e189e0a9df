"""The profiler sees each collective: its name, its group, dtype, sizes, ranks and number."""

import json

import pytest
import torch
import torch.distributed as dist
from common import everywhere
from torch.profiler import ProfilerActivity, profile


def recorded(run, path) -> tuple[list[dict], list[str]]:
    """While `run` runs, in order: the arguments of every record_param_comms, and vccl's own ranges."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
    names = {event.key for event in profiler.key_averages()}
    assert "record_param_comms" in names
    profiler.export_chrome_trace(path)
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    events = sorted((event for event in events if "dur" in event), key=lambda event: event["ts"])
    calls = [event["args"] for event in events if event["name"] == "record_param_comms"]
    # Torch itself records where a handle is waited for.
    calls = [args for args in calls if args["Collective name"] != "wait"]
    return calls, [event["name"] for event in events if event["name"].startswith("vccl:")]


def calls(rank: int, size: int, device: str, group):
    """Each collective: what the profiler calls it, elements in and out, dtype, and how to run it."""
    x = torch.ones(4 * size, device=device)
    small = torch.ones(4, device=device)
    whole = torch.empty(4 * size * size, device=device)
    parts = lambda: list(torch.ones(4 * size, device=device).chunk(size))  # noqa: E731
    n, all_ = 4 * size, 4 * size * size

    def coalesced() -> None:
        with dist._coalescing_manager(group):
            dist.all_reduce(x, group=group)
            dist.all_reduce(small, group=group)

    return [
        ("all_reduce", n, n, "Float", lambda: dist.all_reduce(x, group=group)),
        ("all_reduce", 3, 3, "Int", lambda: dist.all_reduce(torch.ones(3, device=device).int(), group=group)),
        ("broadcast", n, n, "Float", lambda: dist.broadcast(x, group_src=0, group=group)),
        ("all_gather", 4, n, "Float", lambda: dist.all_gather(parts(), small, group=group)),
        (
            "all_gather_into_tensor",
            n,
            all_,
            "Float",
            lambda: dist.all_gather_into_tensor(whole, x, group=group),
        ),
        ("reduce_scatter", n, 4, "Float", lambda: dist.reduce_scatter(small, parts(), group=group)),
        ("reduce_scatter_tensor", n, 4, "Float", lambda: dist.reduce_scatter_tensor(small, x, group=group)),
        ("all_to_all", n, n, "Float", lambda: dist.all_to_all(parts(), parts(), group=group)),
        ("reduce", n, n, "Float", lambda: dist.reduce(x, group_dst=0, group=group)),
        ("barrier", 0, 0, "Byte", lambda: dist.barrier(group)),
        ("all_reduce_coalesced", n + 4, n + 4, "Float", coalesced),
    ]


def each_collective(rank, size, device, path):
    group = dist.new_group(group_desc="the profiled")
    wanted = calls(rank, size, device, group)
    for *_, run in wanted:  # communicators are made outside of the profile
        run()
    before = group._get_sequence_number_for_group()

    def run_all():
        for *_, run in wanted:
            run()

    found, ranges = recorded(run_all, f"{path}.{rank}")
    assert ranges == [f"vccl:{name}" for name, *_ in wanted]
    return before, group.group_name, [tuple(call[:4]) for call in wanted], found


@everywhere
def test_each_collective(rank_pool, device, tmp_path):
    for before, name, wanted, found in rank_pool.run(2, each_collective, device, str(tmp_path / "trace")):
        told = [
            (args["Collective name"], args["In msg nelems"], args["Out msg nelems"], args["dtype"])
            for args in found
        ]
        for args in found:
            assert args["Group size"] == 2
            assert args["Process Group Name"] == name
            assert args["Process Group Description"] == "the profiled"
            assert args["Process Group Ranks"] == "[0, 1]"
        assert told == wanted
        assert [args["Seq"] for args in found] == list(range(before + 1, before + 1 + len(wanted)))


@pytest.mark.ranks(2)
@everywhere
def test_parts_and_roots(ranks, device, tmp_path):
    """Uneven chunks, and what only one rank has."""
    rank = ranks.rank
    path = str(tmp_path / "trace")
    sizes = [1, 3] if rank == 0 else [3, 1]
    x, y = torch.ones(4, device=device), torch.empty(4, device=device)
    halves = lambda: list(torch.empty(4, device=device).chunk(2)) if rank == 0 else None  # noqa: E731

    def run():
        dist.all_to_all_single(y, x, sizes, sizes)
        dist.gather(x[:2], halves(), 0)
        dist.scatter(y[:2], halves(), 0)
        dist.all_reduce(x, async_op=True).wait()

    run()
    exchanged, gathered, scattered, reduced = recorded(run, f"{path}.{rank}")[0]
    assert exchanged["Collective name"] == "all_to_all_single"
    assert json.loads(exchanged["In split size"]) == json.loads(exchanged["Out split size"]) == sizes
    assert (gathered["Collective name"], gathered["In msg nelems"]) == ("gather", 2)
    assert gathered["Out msg nelems"] == (4 if rank == 0 else 0)
    assert (scattered["Collective name"], scattered["Out msg nelems"]) == ("scatter", 2)
    assert scattered["In msg nelems"] == (4 if rank == 0 else 0)
    assert [bool(args["Is asynchronized op"]) for args in (exchanged, reduced)] == [False, True]


@pytest.mark.ranks(2)
@everywhere
def test_messages(ranks, device, tmp_path):
    rank = ranks.rank
    path = str(tmp_path / "trace")
    other = 1 - rank
    x, y = torch.ones(6, device=device), torch.empty(6, device=device)

    def run():
        dist.send(x, other) if rank == 0 else dist.recv(y, other)
        operations = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, y, other)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    run()
    calls, ranges = recorded(run, f"{path}.{rank}")
    first = "send" if rank == 0 else "recv"
    assert ranges == [f"vccl:{first}", "vccl:coalesced"]
    assert [args["Collective name"] for args in calls] == [first, "send", "recv"]
    for args in calls:
        sends = args["Collective name"] == "send"
        assert args["Dst Rank" if sends else "Src Rank"] == other
        assert args["In msg nelems" if sends else "Out msg nelems"] == 6
        assert args["dtype"] == "Float"
        assert args["Process Group Ranks"] == "[0, 1]"
    assert calls[0]["Seq"] < calls[1]["Seq"] == calls[2]["Seq"]
