"""vccl.bench: its arithmetic, and one small run of each collective through torchrun's agent."""

import json

import pytest
import torch

from vccl.bench import cases, cli
from vccl.bench.cases import CASES, Setting, differing
from vccl.bench.sizes import format_size, parse_size, series


@pytest.mark.parametrize(
    "text, size", [("4", 4), ("64K", 65536), ("1M", 1 << 20), ("2GiB", 2 << 30), ("8B", 8)]
)
def test_sizes_are_read(text, size):
    assert parse_size(text) == size
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize("text", ["", "M", "-4", "1.5K", "4X"])
def test_bad_sizes_are_refused(text):
    with pytest.raises(ValueError):
        parse_size(text)


def test_series():
    assert list(series(4, 64, 4)) == [4, 16, 64]
    assert list(series(4, 63, 4)) == [4, 16]
    with pytest.raises(ValueError):
        list(series(0, 64, 4))


def setting(world_size=4, dtype=torch.float32, **options):
    return Setting(1, world_size, None, torch.device("cpu"), dtype, **options)


def test_bus_factors_are_those_of_nccl_tests():
    factors = {name: CASES[name](setting(), 1024).bus_factor() for name in CASES}
    assert factors == {"all_reduce": 1.5, "broadcast": 1.0, "all_gather": 0.75, "barrier": 1.0}


def test_counts():
    assert CASES["all_reduce"](setting(), 1024).count == 256
    gather = CASES["all_gather"](setting(), 1024)
    assert (gather.size, gather.count, gather.output.numel()) == (1024, 64, 256)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("op", ["sum", "min", "max"])
def test_the_check_finds_what_is_wrong(dtype, op):
    case = CASES["all_reduce"](setting(2, dtype, op=op), 64 * dtype.itemsize)
    reduce = {"sum": torch.Tensor.sum, "min": torch.Tensor.amin, "max": torch.Tensor.amax}[op]
    inputs = torch.stack([case.pattern(rank).double() for rank in range(2)])
    case.buffer.copy_(reduce(inputs, 0))
    assert case.wrong() == 0
    case.buffer[3] += 1
    case.buffer[60] -= 1
    assert case.wrong() == 2


def test_nan_is_wrong():
    assert differing(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0])) == 1


def test_without_ranks_it_says_what_to_do(monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit):
        cli.parse(["all_reduce"])
    assert "vrun --cards 2" in capsys.readouterr().err


@pytest.mark.parametrize("collective", CASES)
@pytest.mark.parametrize("backends, device", [("gloo", "cpu"), ("vccl,gloo", "vdev"), ("vccl", "cpu")])
def test_run(vrun, tmp_path, collective, backends, device):
    output = vrun(
        *("--cards", 2, "-m", "vccl.bench", collective, "--backend", backends, "--device", device),
        *("--min", 64, "--max", "4K", "--factor", 8, "--iters", 3, "--warmup", 1, "--json", "out.json"),
    )
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["ranks"] == 2 and figures["machine"]["torch"] == torch.__version__
    expected = [0] if collective == "barrier" else [64, 512, 4096]
    assert [row["size"] for row in figures["rows"]] == expected
    for row in figures["rows"]:
        assert list(row["timings"]) == backends.split(",")
        for timing in row["timings"].values():
            assert timing["wrong"] == 0 and timing["calls"] == 3
            assert 0 < timing["median"] <= timing["p90"]
            bandwidth = row["size"] / timing["median"] / 1e3
            assert timing["algorithm_bandwidth"] == pytest.approx(bandwidth)
    table = [line for line in output.splitlines() if line.startswith(" ") and line.count("|") >= 1]
    assert len(table) == len(expected), output  # rank 0 alone prints


def test_ops_cover_what_the_command_line_offers():
    assert set(cases.REDUCE_OPS) == {"sum", "avg", "min", "max"}
