"""python -m vccl.merge_traces: traces of several ranks become one, on one clock."""

import gzip
import json
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from vccl.merge_traces import main, merge, read_trace


def trace(base: int, ts: float, rank: int | None) -> dict:
    events = [
        {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}},
        {"ph": "X", "name": "work", "pid": 7, "tid": 1, "ts": ts, "dur": 2},
        {"ph": "s", "name": "ac2g", "id": 5, "pid": 7, "tid": 1, "ts": ts},
    ]
    info = {} if rank is None else {"distributedInfo": {"rank": rank}}
    return {"baseTimeNanoseconds": base, "traceEvents": events, **info}


def test_times_processes_and_arrows_of_two_ranks():
    merged = merge([trace(3_000, 10.0, 1), trace(1_000, 11.0, 0)])
    assert merged["baseTimeNanoseconds"] == 1_000
    work = [event for event in merged["traceEvents"] if event["name"] == "work"]
    assert [event["ts"] for event in work] == [11.0, 12.0]  # rank 0 first; rank 1 began 2 us later
    assert len({event["pid"] for event in work}) == 2
    names = [event["args"]["name"] for event in merged["traceEvents"] if event["name"] == "process_name"]
    assert names == ["rank 0: python", "rank 1: python"]
    assert [event["id"] for event in merged["traceEvents"] if event["ph"] == "s"] == ["0:5", "1:5"]


def reduced(ts: float, dur: float, number: int, name: str = "all_reduce") -> dict:
    """The run of a collective."""
    args = {"Process Group Name": "0", "Collective name": name, "Seq": number, "bytes": 64}
    args["bus bandwidth (GB/s)"] = 1.0
    return {"ph": "X", "name": name, "pid": 0, "tid": 0, "ts": ts, "dur": dur, "args": args}


def on_host(rank: int, clock: str, *runs: dict) -> dict:
    made = trace(1_000, 0.0, rank)
    made["traceEvents"] += runs
    return {**made, "vccl_clock": clock, "host_name": f"host-{clock}"}


def times(merged: dict) -> list[float]:
    return [event["ts"] for event in merged["traceEvents"] if event["name"] == "all_reduce"]


def test_times_of_two_hosts_are_moved_to_one_clock():
    # On the clock of b, which is 500 us ahead: between 500 us and 510 us, and between 1490 us and 1500 us.
    here = on_host(0, "a", reduced(100, 20, 1), reduced(1100, 20, 2))
    there = on_host(1, "b", reduced(610, 20, 1), reduced(1595, 15, 2))
    merged = merge([there, here])
    # 1: 100 - 630 = -530 to 120 - 610 = -490. 2: 1100 - 1610 = -510 to 1120 - 1595 = -475.
    assert times(merged) == [100, 1100, 110, 1095]
    assert merged["clocks"] == (
        "times are of the clock of host host-a; those of host host-b were moved by -0.500 ms, "
        "right to 0.010 ms by 2 collectives"
    )


def test_times_are_compared_to_the_nanosecond():
    """Nanoseconds since 1970 do not fit into a float."""
    here, there = on_host(0, "a", reduced(100, 0.01, 1)), on_host(1, "b", reduced(100.005, 0.01, 1))
    for one in (here, there):
        one["baseTimeNanoseconds"] = 1_790_857_026_000_000_001
    there["baseTimeNanoseconds"] += 3
    merged = merge([here, there])
    ours, theirs = (event for event in merged["traceEvents"] if event["name"] == "all_reduce")
    assert theirs["ts"] == pytest.approx(ours["ts"], abs=1e-6)


def test_collectives_that_tell_nothing_are_left_out():
    uneven = [reduced(0, 1, 3, "all_to_all_single"), reduced(0, 1, 4, "broadcast")]
    replayed = [reduced(5, 1, 7), reduced(9, 1, 7)]
    here = on_host(0, "a", reduced(100, 20, 1), *uneven, *replayed, reduced(700, 1, 8))
    there = on_host(1, "b", reduced(110, 20, 1), *uneven, *replayed, reduced(700, 1, 9))
    assert "by 1 collectives" in merge([here, there])["clocks"]
    merged = merge([here, on_host(1, "b", *uneven, *replayed)])
    assert "host host-b could not be compared" in merged["clocks"]
    assert [event["ts"] for event in merged["traceEvents"] if event["name"] == "broadcast"] == [0, 0]


def test_a_rank_that_always_waits_does_not_move_the_clock():
    here = on_host(0, "a", reduced(0, 300, 1), reduced(1000, 300, 2))
    there = on_host(1, "b", reduced(299, 1, 1), reduced(1299, 1, 2))
    assert "moved by +0.000 ms, right to 0.300 ms" in merge([here, there])["clocks"]


def test_clocks_that_drift_apart():
    here = on_host(0, "a", reduced(100, 2, 1), reduced(9000, 2, 2))
    there = on_host(1, "b", reduced(100, 2, 1), reduced(9100, 2, 2))
    # 0 +- 2 us at first, -100 +- 2 us at the end.
    assert "moved by -0.050 ms, right to 0.048 ms" in merge([here, there])["clocks"]


def test_clocks_are_told_apart(tmp_path, capsys):
    def told(*clocks: dict) -> str:
        paths = [tmp_path / f"{i}.json" for i in range(len(clocks))]
        for path, clock in zip(paths, clocks, strict=True):
            path.write_text(json.dumps({**trace(0, 1, None), **clock}))
        out = tmp_path / "all.json"
        assert main([*map(str, paths), "-o", str(out)]) == 0
        text = capsys.readouterr().out
        assert read_trace(out)["clocks"] in text
        return text

    here = {"vccl_clock": "boot 1", "host_name": "a"}
    assert "one clock" in told(here, {**here, "host_name": "container"})
    assert "one clock" in told({"host_name": "a"}, {"host_name": "a"})
    assert "may not agree" in told(here, {})
    other = {"vccl_clock": "boot 2", "host_name": "b"}
    assert "clock of host a; those of host b could not be compared" in told(here, here, other)


def test_traces_of_torch(tmp_path):
    paths = [tmp_path / "a.json", tmp_path / "b.json.gz"]
    for path in paths:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            torch.ones(2) + 1
        profiler.export_chrome_trace(str(path))
    out = tmp_path / "all.json.gz"
    assert main([*map(str, paths), "-o", str(out)]) == 0
    adds = [event for event in read_trace(out)["traceEvents"] if event["name"] == "aten::add"]
    assert len(adds) == 2 and adds[0]["pid"] != adds[1]["pid"]
    assert adds[0]["ts"] + adds[0]["dur"] <= adds[1]["ts"]  # the second profile came after the first


def bad_files(folder: Path) -> dict[str, Path]:
    texts = {"cut.json": b'{"traceEvents": [', "list.json": b"[]", "cut.json.gz": gzip.compress(b"{}")[:-3]}
    texts["clock.json"] = b'{"traceEvents": []}'
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    return {name: folder / name for name in [*texts, "missing.json"]}


@pytest.mark.parametrize("name", ["cut.json", "list.json", "cut.json.gz", "clock.json", "missing.json"])
def test_a_bad_file_is_named(tmp_path, capsys, name):
    out = tmp_path / "out.json"
    assert main([str(bad_files(tmp_path)[name]), "-o", str(out)]) == 2
    assert name in capsys.readouterr().err
    assert not out.exists()


def test_ranks_must_be_told_apart():
    with pytest.raises(ValueError, match="same rank"):
        merge([trace(0, 1, 1), trace(0, 1, 1)])
    with pytest.raises(ValueError, match="trace 2 names no rank"):
        merge([trace(0, 1, 1), trace(0, 1, None)])


def test_an_input_is_not_overwritten(tmp_path, capsys):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(trace(0, 1, 0)))
    assert main([str(path), "-o", str(path)]) == 2
    assert "is also an input" in capsys.readouterr().err
    assert json.loads(path.read_text()) == trace(0, 1, 0)
