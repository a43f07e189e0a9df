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
    assert "2 clocks (hosts a, b)" in told(here, here, {"vccl_clock": "boot 2", "host_name": "b"})
    assert "may not agree" in told(here, {})


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
