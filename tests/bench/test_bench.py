"""vccl.bench: its arithmetic, and one small run of each collective through torchrun's agent."""

import json
import mmap
import os
import re
import shutil
import signal
import threading
from pathlib import Path

import pytest
import torch

from vccl import _C
from vccl.bench import baseline, cases, cli, markdown
from vccl.bench.cases import CASES, Setting, differing
from vccl.bench.measure import Timing
from vccl.bench.mpi import Mpi
from vccl.bench.report import Row, read_json, write_json
from vccl.bench.sizes import format_size, parse_size, series

ROOT = Path(__file__).resolve().parents[2]


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


def test_the_barrier_ends_its_wait():
    barrier = _C._HostBarrier(mmap.mmap(-1, mmap.PAGESIZE), 2)
    with pytest.raises(TimeoutError, match="did not come"):
        barrier.wait(look=0.0, timeout=0.01)
    barrier.wait(look=0.0, timeout=0.0)  # the second to come


def test_the_barrier_can_be_interrupted():
    barrier = _C._HostBarrier(mmap.mmap(-1, mmap.PAGESIZE), 2)
    # A shell starts what runs in the background with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            barrier.wait(look=0.0, timeout=300.0)
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_barrier_wants_a_page():
    for page in (bytearray(8), memoryview(mmap.mmap(-1, mmap.PAGESIZE))[4:]):
        with pytest.raises(ValueError, match="page"):
            _C._HostBarrier(page, 2)


def setting(world_size=4, dtype=torch.float32, **options):
    return Setting(1, world_size, None, torch.device("cpu"), dtype, **options)


def test_bus_factors_are_those_of_nccl_tests():
    factors = {name: CASES[name](setting(), 1024).bus_factor() for name in CASES}
    whole = dict.fromkeys(("broadcast", "reduce", "send_recv", "barrier"), 1.0)
    parts = dict.fromkeys(("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"), 0.75)
    assert factors == {"all_reduce": 1.5, **whole, **parts}


def test_traffic_is_what_the_best_way_reads_and_writes():
    bytes_of = {name: CASES[name](setting(), 1024).traffic() / 1024 for name in CASES}
    assert bytes_of["all_reduce"] == bytes_of["all_gather"] == bytes_of["all_to_all"] == 8
    assert bytes_of["reduce_scatter"] == bytes_of["reduce"] == 5
    assert bytes_of["broadcast"] == 6 and bytes_of["gather"] == bytes_of["scatter"] == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_memory_pass_counts_what_it_reads_and_writes(dtype):
    memory = cases.MemoryPass(setting(2, dtype), 1 << 20)
    memory.call()
    # Two reads and a write of every element, in each pass, on both ranks.
    assert memory.traffic() == 2 * 3 * 4 * memory.count * memory.passes
    assert memory.output.unique().tolist() == [memory.passes] and memory.passes > 1
    assert cases.MemoryPass(setting(2, dtype), 64 << 20).passes == 1 and not memory.together


def test_counts():
    assert CASES["all_reduce"](setting(), 1024).count == 256
    gather = CASES["all_gather"](setting(), 1024)
    assert (gather.size, gather.count, gather.output.numel()) == (1024, 64, 256)


LONG = 2 * cases.PERIOD + 100  # elements: some periods, and a part of one


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("op", ["sum", "min", "max"])
@pytest.mark.parametrize("count", [64, LONG])
def test_the_check_finds_what_is_wrong(dtype, op, count):
    case = CASES["all_reduce"](setting(2, dtype, op=op), count * dtype.itemsize)
    reduce = {"sum": torch.Tensor.sum, "min": torch.Tensor.amin, "max": torch.Tensor.amax}[op]
    inputs = torch.stack([ramp(count, rank).double() for rank in range(2)])
    case.output.copy_(reduce(inputs, 0))
    assert case.wrong() == 0
    case.output[3] += 1
    case.output[count - 4] -= 1
    assert case.wrong() == 2


def ramp(count, begin):
    return torch.arange(count) % 8 + begin % 8


@pytest.mark.parametrize("count", [1, 64, cases.PERIOD, LONG])
def test_inputs_are_written_whole(count):
    whole = CASES["all_reduce"](setting(), 4 * count)
    parts = CASES["reduce_scatter"](setting(), 4 * 4 * count)
    for case in (whole, parts):
        case.input.fill_(-1)
        case.reset()
    assert torch.equal(whole.input.long(), ramp(count, 1))
    expected = torch.cat([ramp(count, 1 + 3 * part) for part in range(4)])
    assert torch.equal(parts.input.long(), expected)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_in_place_shares_lie_in_the_whole(collective):
    case = CASES[collective](setting(in_place=True), 1024)
    share, whole = sorted((case.input, case.output), key=torch.Tensor.numel)
    assert share.data_ptr() == whole.data_ptr() + share.nbytes  # of rank 1
    assert not cases.Case.in_place_too and CASES[collective].in_place_too


def figures(path, **times):
    """A file as --json writes it: one size, the medians given."""
    timings = {
        name: Timing(10, time, time * 2, time * 4, 1048576 / time / 1e3, 1048576 / time / 1e3, 0)
        for name, time in times.items()
    }
    row = Row(1048576, 262144, "float32", "sum", -1, timings, traffic=4 * 1048576.0, memory=50e9)
    devices = {name: "cpu" if name == "gloo" else "vdev" for name in times}
    write_json(path, {"collective": "all_reduce", "ranks": 2, "devices": devices}, [row])
    return row


def test_figures_are_read_as_they_were_written(tmp_path):
    row = figures(tmp_path / "f.json", vccl=100.0, gloo=2000.0)
    facts, rows = read_json(tmp_path / "f.json")
    assert rows == [row] and facts["ranks"] == 2 and "rows" not in facts
    assert rows[0].ratio("gloo") == 20.0
    assert rows[0].of_memory("vccl") == pytest.approx(4 * 1048576 / 50e9 / 100e-6)
    (tmp_path / "other.json").write_text('{"rows": [{"size": 1}]}')
    with pytest.raises(ValueError, match=r"other\.json is not a file that vccl\.bench --json wrote"):
        read_json(tmp_path / "other.json")


def test_the_table_goes_between_the_marks(tmp_path, capsys):
    figures(tmp_path / "f.json", vccl=100.0, gloo=2000.0)
    document = tmp_path / "README.md"
    document.write_text(f"before\n{markdown.BEGIN}\nold\n{markdown.END}\nafter\n")
    assert cli.main(["table", str(tmp_path / "f.json"), "--into", str(document)]) == 0
    text = document.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "| 1M | 100.0 / 400.0 | 2,000.0 / 8,000.0 | 20.0x | 84% |" in text
    document.write_text("no marks")
    with pytest.raises(ValueError, match="has no <!-- bench: begin"):
        cli.main(["table", str(tmp_path / "f.json"), "--into", str(document)])


def test_the_short_table_has_the_medians_of_all_files(tmp_path, capsys):
    figures(tmp_path / "a.json", vccl=100.0, gloo=2000.0)
    figures(tmp_path / "b.json", vccl=300.0, gloo=4000.0)
    files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert cli.main(["table", *files, "--sizes", "1M"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| size | vccl, 2 ranks | gloo, 2 ranks | vccl, 2 ranks | gloo, 2 ranks |"
    assert lines[4:] == ["| 1M | 100.0 | 2,000.0 | 300.0 | 4,000.0 |"]
    with pytest.raises(SystemExit):
        cli.main(["table", *files, "--sizes", "1M,2M"])
    assert "the figures of 2 ranks have no row for 2M" in capsys.readouterr().err


def test_the_pages_have_the_figures_of_the_last_make_bench(tmp_path):
    """Runs the commands of the Makefile that write tables, on copies of the pages."""
    commands = re.findall(r"vccl\.bench (table .*)", (ROOT / "Makefile").read_text().replace("\\\n", ""))
    assert len(commands) == 2
    for command in commands:
        *arguments, page = command.split()
        copy = tmp_path / Path(page).name
        copy.write_text((ROOT / page).read_text())
        here = [str(ROOT / word) if word.startswith("docs/") else word for word in arguments]
        assert cli.main([*here, str(copy)]) == 0
        assert copy.read_text() == (ROOT / page).read_text(), f"{page}: run python -m vccl.bench {command}"


def test_the_plot_is_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    figures(tmp_path / "f.json", vccl=100.0, gloo=2000.0)
    assert cli.main(["plot", str(tmp_path / "f.json"), "--output", str(tmp_path / "f.png")]) == 0
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_the_baseline_finds_a_ratio_that_was_lost(tmp_path, monkeypatch, capsys):
    path = tmp_path / "baseline.json"
    monkeypatch.setattr(baseline, "RUNS", [(2, ["all_reduce"])])
    monkeypatch.setattr(baseline, "run", lambda *_: [figures(tmp_path / "f", vccl=100.0, gloo=2000.0)])
    assert cli.main(["check", str(path), "--write"]) == 0
    assert cli.main(["check", str(path)]) == 0
    monkeypatch.setattr(baseline, "run", lambda *_: [figures(tmp_path / "f", vccl=200.0, gloo=2000.0)])
    assert cli.main(["check", str(path)]) == 1
    assert "2 ranks, gloo / vccl at 1M: 20.00 in the baseline, 10.00: LOST" in capsys.readouterr().out
    assert cli.main(["check", str(path), "--tolerance", "0.6"]) == 0
    with pytest.raises(SystemExit):
        cli.main(["check", str(tmp_path / "none.json")])
    assert "--write makes one" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["all_reduce", "--backend", "gloo,gloo"], "names a backend twice"),
        (["all_reduce", "--backend", "mpi"], "behind another backend"),
        (["all_reduce", "--backend", "vccl,mpi", "--dtype", "bfloat16"], "float32, sum and root 0 only"),
        (["broadcast", "--in-place"], "--in-place is for all_gather and reduce_scatter"),
    ],
)
def test_arguments_that_do_not_go_together(arguments, message, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit):
        cli.parse(arguments)
    assert message in capsys.readouterr().err


def test_without_an_mpi_it_says_so(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(FileNotFoundError, match="mpicc is not installed"):
        Mpi(2)


@pytest.mark.skipif(not (shutil.which("mpicc") and shutil.which("mpirun")), reason="no MPI is installed")
def test_an_mpi_beside_the_others(vrun, tmp_path):
    vrun(
        *("--cards", 2, "-m", "vccl.bench", "all_reduce", "--backend", "vccl,mpi", "--memory"),
        *("--min", 1024, "--max", 1024, "--iters", 6, "--json", "out.json"),
    )
    _, rows = read_json(tmp_path / "out.json")
    assert rows[0].timings["mpi"].calls == 6 and rows[0].ratio("mpi") > 0 and rows[0].memory > 0


def test_nan_is_wrong():
    assert differing(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0])) == 1


def test_without_ranks_it_says_what_to_do(monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit):
        cli.parse(["all_reduce"])
    assert "vrun --cards 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    "collective, backends, device",
    [
        *((name, "vccl,gloo", "vdev") for name in CASES),
        ("all_reduce", "vccl", "cpu"),
        ("barrier", "gloo", "cpu"),
    ],
)
def test_run(vrun, tmp_path, collective, backends, device):
    output = vrun(
        *("--cards", 2, "-m", "vccl.bench", collective, "--backend", backends, "--device", device),
        *("--min", 64, "--max", 40000, "--factor", 25, "--iters", 3, "--warmup", 1, "--json", "out.json"),
    )
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["ranks"] == 2 and figures["machine"]["torch"] == torch.__version__
    expected = [0] if collective == "barrier" else [64, 1600, 40000]
    assert [row["size"] for row in figures["rows"]] == expected
    for row in figures["rows"]:
        assert list(row["timings"]) == backends.split(",")
        for timing in row["timings"].values():
            assert timing["wrong"] == 0 and timing["calls"] == 3
            assert 0 < timing["median"] <= timing["p90"] <= timing["p99"]
            bandwidth = row["size"] / timing["median"] / 1e3
            assert timing["algorithm_bandwidth"] == pytest.approx(bandwidth)
    table = [line for line in output.splitlines() if line.startswith(" ") and line.count("|") >= 1]
    assert len(table) == len(expected), output  # rank 0 alone prints


def test_cards_that_pose_are_measured_without_naming_them(vrun, tmp_path):
    output = vrun(
        *("--as-cuda", "--cards", 2, "-m", "vccl.bench", "all_reduce", "--backend", "nccl"),
        *("--max", 4, "--iters", 3, "--warmup", 1, "--json", "out.json"),
    )
    assert json.loads((tmp_path / "out.json").read_text())["devices"] == {"nccl": "cuda"}
    assert "nccl on cuda" in output


def test_ops_cover_what_the_command_line_offers():
    assert set(cases.REDUCE_OPS) == {"sum", "avg", "min", "max"}


def test_help_names_the_commands(capsys):
    with pytest.raises(SystemExit):
        cli.parse(["--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: python -m vccl.bench ")
    assert all(name in text.partition("Instead of a collective: ")[2] for name in cli.COMMANDS)
