"""Tests on ranks are tests as any other: marks, fixtures, options and plugins of pytest do what they do."""

import sys

import pytest
from torch_build import without_cuda

SOURCE = """
import os, sys, warnings
import pytest, torch
import torch.distributed as dist
from vccl.testing import assert_same_on_all_ranks, expect_error_on, isolated_store, kill_rank, on_rank

DEVICE = os.environ.get("DEVICE", "vdev")

@pytest.fixture(autouse=True)
def note_pid():
    with open(os.environ["PIDS"], "a") as file:
        file.write(f"{os.getpid()} ")

@pytest.fixture
def number(ranks):
    yield ranks.rank * 10

@pytest.mark.ranks(4)
def test_collective(ranks, number):
    assert number == ranks.rank * 10 == dist.get_rank() * 10
    x = torch.full((4,), float(ranks.rank), device=ranks.device)
    dist.all_reduce(x)
    assert x.device == ranks.device and x.device.type == DEVICE
    assert x.eq(6).all() and ranks.size == dist.get_world_size() == 4
    if DEVICE != "cpu":
        assert torch.accelerator.current_device_index() == ranks.rank
    assert dist.get_backend() == os.environ.get("BACKEND", "vccl")

@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("factor", [2, 5])
def test_sizes(ranks, factor):
    assert ranks.size == dist.get_world_size() == int(os.environ["WORLD_SIZE"])
    x = torch.ones(1) * factor
    dist.all_reduce(x)
    assert x.item() == ranks.size * factor

def test_by_the_fixture_alone(ranks):
    assert ranks.size == dist.get_world_size() == 2

@pytest.mark.ranks(2)
class TestOfAClass:
    def test_one(self, ranks): assert ranks.size == 2
    @pytest.mark.ranks(3)
    def test_other(self, ranks): assert ranks.size == 3

@pytest.mark.ranks(4, hosts=2)
def test_hosts(ranks):
    assert ranks.hosts == ("host_0", "host_0", "host_1", "host_1")
    assert os.environ["VCCL_HOSTID"] == ranks.hosts[ranks.rank] and os.environ["LOCAL_WORLD_SIZE"] == "2"
    dist.all_reduce(torch.ones(4))

@pytest.mark.ranks(2, group=False)
def test_own_group():
    assert not dist.is_initialized()
    dist.init_process_group(os.environ.get("BACKEND", "vccl"))
    dist.all_reduce(torch.ones(1, device=DEVICE))

@pytest.mark.ranks(2, group=False)
def test_own_store(ranks):
    store = isolated_store()
    store.set(f"of {ranks.rank}", "x")
    store.wait([f"of {1 - ranks.rank}"])
    assert isolated_store().check(["of 0"]) is False

@pytest.mark.ranks(2, env={"OF_THE_TEST": "1"})
def test_variables(monkeypatch):
    assert os.environ["OF_THE_TEST"] == "1"
    monkeypatch.setenv("OF_MONKEYPATCH", "1")

@pytest.mark.ranks(2)
def test_folder(tmp_path, tmp_path_factory, ranks):
    (tmp_path / str(ranks.rank)).touch()
    dist.barrier()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
    (tmp_path_factory.mktemp("own") / "file").touch()

@pytest.mark.ranks(2)
def test_printed(capsys, ranks):
    print("hello from", ranks.rank)
    assert f"hello from {ranks.rank}" in capsys.readouterr().out

@pytest.mark.ranks(2)
def test_written(capfd):
    os.write(1, b"by the descriptor")
    assert "by the descriptor" in capfd.readouterr().out

@pytest.mark.ranks(2)
def test_skipped_inside(): pytest.skip("a reason")

@pytest.mark.ranks(2)
@pytest.mark.skipif(True, reason="a condition")
def test_skipped_by_mark(): assert False

@pytest.mark.ranks(3)
@pytest.mark.xfail(raises=ValueError, strict=True)
def test_expected_failure():
    if on_rank(1): raise ValueError
    dist.barrier()

@pytest.mark.ranks(2)
@pytest.mark.xfail
def test_unexpected_success(): pass

@pytest.mark.ranks(2)
@pytest.mark.xfail(strict=True)
def test_strict_success(): pass

@pytest.mark.ranks(3)
def test_helpers(ranks):
    assert on_rank(0, 2) == (ranks.rank != 1)
    with expect_error_on(rank=1, match="of this rank", raises=ValueError):
        if ranks.rank == 1: raise ValueError("of this rank")
    with pytest.raises(AssertionError, match="did not raise") if on_rank(2) else warnings.catch_warnings():
        with expect_error_on(2): pass
    with pytest.raises(AssertionError, match="does not match") if on_rank(2) else warnings.catch_warnings():
        with expect_error_on(2, match="one"):
            if on_rank(2): raise ValueError("other")
    assert_same_on_all_ranks(torch.arange(5, device=ranks.device))
    assert_same_on_all_ranks(torch.tensor([float("nan")]))
    different = torch.arange(5.0)
    if on_rank(2): different[3] = 7
    with pytest.raises(AssertionError) as caught: assert_same_on_all_ranks(different)
    text = str(caught.value)
    assert "ranks 0 to 1: shape (5,)" in text and "rank 2: shape (5,)" in text and "1 of 5" in text
    assert "element 3 (flat): 3.0 on rank 0, 7.0 on rank 2" in text
    with pytest.raises(AssertionError, match="torch.int64"):
        assert_same_on_all_ranks(torch.ones(2, dtype=[torch.int64, torch.float32][ranks.rank % 2]))

@pytest.mark.ranks(3)
def test_a_rank_is_killed(ranks):
    dist.barrier()
    kill_rank(1)
    assert ranks.rank != 1

@pytest.mark.ranks(2)
@pytest.mark.parametrize("again", [0, 1])
def test_random_numbers(ranks, again):
    # Ranks draw different ones, and each test begins as the first has begun.
    drawn = [torch.rand(1).item(), torch.rand(1, device=ranks.device).item()]
    store = isolated_store()
    store.set(str(ranks.rank), str(drawn))
    assert store.get("0") != store.get("1")
    torch.random_numbers_of_first = getattr(torch, "random_numbers_of_first", drawn)
    assert torch.random_numbers_of_first == drawn

@pytest.mark.ranks(2)
def test_a_warning(): warnings.warn("of all ranks")

def test_functions(rank_pool, monkeypatch):
    monkeypatch.setenv("OF_THIS_PROCESS", "1")
    assert rank_pool.run(3, twice, 4) == [(0, 8, "1"), (1, 8, "1"), (2, 8, "1")]
    assert rank_pool.run(2, ends, dying=[1]) == ["here", None]

def twice(rank, size, value): return rank, 2 * value, os.environ.get("OF_THIS_PROCESS")
def ends(rank, size): return os._exit(1) if rank == 1 else "here"

def test_plain(): assert "ranks" not in os.environ.get("PYTEST_CURRENT_TEST")

@pytest.mark.ranks(5000)
def test_too_many(): assert False
"""
EXPECTED = {
    "test_collective": "passed",
    "test_sizes[1_ranks-2]": "passed",
    "test_sizes[1_ranks-5]": "passed",
    "test_sizes[3_ranks-2]": "passed",
    "test_sizes[3_ranks-5]": "passed",
    "test_by_the_fixture_alone": "passed",
    "test_one": "passed",
    "test_other": "passed",
    "test_hosts": "passed",
    "test_own_group": "passed",
    "test_own_store": "passed",
    "test_variables": "passed",
    "test_folder": "passed",
    "test_printed": "passed",
    "test_written": "passed",
    "test_skipped_inside": "skipped",
    "test_skipped_by_mark": "skipped",
    "test_expected_failure": "skipped",  # as junit's XML calls it
    "test_unexpected_success": "passed",
    "test_strict_success": "failed",
    "test_helpers": "passed",
    "test_a_rank_is_killed": "passed",
    "test_random_numbers[0]": "passed",
    "test_random_numbers[1]": "passed",
    "test_a_warning": "passed",
    "test_functions": "passed",
    "test_plain": "passed",
    "test_too_many": "skipped",
}


@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["one_process", "xdist"])
def test_outcomes(inner_pytest, options):
    done = inner_pytest(SOURCE, *options, "--durations=3", "-rA", status=1, env={"VDEV_DEVICE_COUNT": "8"})
    assert done.outcomes == EXPECTED, done.output
    assert "RanksWarning" not in done.output, done.output
    assert done.output.count("UserWarning: of all ranks") == 1
    assert "needs 5000 ranks with a card each, and there are 8 of type vdev" in done.output
    assert "[XPASS(strict)]" in done.output and "slowest 3 durations" in done.output
    # Ranks are kept: 5 of a pool, and those that were killed or ended.
    assert len(set(done.pids)) < 30


SHORT = "collective or sizes or own or hosts or killed"


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        (["--ranks-device", "cpu"], {"DEVICE": "cpu", "BACKEND": "gloo"}),
        (["--ranks-device", "cpu", "--ranks-backend", "vccl"], {"DEVICE": "cpu"}),
        # Cards cannot stand in the place of torch's own CUDA.
        pytest.param(
            ["--ranks-device", "cuda", "--ranks-backend", "vccl"], {"DEVICE": "cuda"}, marks=without_cuda
        ),
        (["--ranks-fresh"], {}),
    ],
    ids=["gloo", "vccl_on_the_cpu", "cuda", "fresh"],
)
def test_devices_and_backends(inner_pytest, options, variables):
    done = inner_pytest(SOURCE, *options, "-k", SHORT, env=variables)
    assert set(done.outcomes.values()) == {"passed"} and len(done.outcomes) == 9, done.output
    if "--ranks-fresh" in options:
        assert len(set(done.pids)) == len(done.pids)
    else:
        assert len(set(done.pids)) < len(done.pids)


THREADS = """
import os, pytest, torch
@pytest.mark.ranks(2)
def test_it(): assert torch.get_num_threads() == int(os.environ["EXPECTED"])
"""


@pytest.mark.parametrize("variable", ["2", None])
def test_threads_of_operators(inner_pytest, run, variable):
    """They are as many as OMP_NUM_THREADS gives any process, or one."""
    code = "import torch; print(torch.get_num_threads())"
    expected = run([sys.executable, "-c", code], env={"OMP_NUM_THREADS": variable or "1"}).strip()
    done = inner_pytest(THREADS, env={"OMP_NUM_THREADS": variable, "EXPECTED": expected})
    assert done.outcomes == {"test_it": "passed"}, done.output


def test_nothing_is_imported_unless_a_test_asks(inner_pytest):
    source = "import sys\ndef test_it(): assert not {'torch', 'vccl', 'vccl.testing'} & set(sys.modules)\n"
    assert inner_pytest(source).outcomes == {"test_it": "passed"}


MIXED = """
import pytest
@pytest.fixture(scope="module", autouse=True)
def of_the_module():
    yield
    print("the end of the module")
def test_before(): pass
@pytest.mark.ranks(1)
def test_on_ranks(): pass
@pytest.mark.ranks(1)
def test_the_last(): pass
"""
OTHER = """
import pytest
@pytest.fixture(scope="module")
def broken():
    yield
    raise ValueError("of the end of the fixture")
def test_other(broken): pass
@pytest.mark.ranks(1)
def test_after_it(): pass
"""


def test_tests_of_both_kinds(inner_pytest):
    done = inner_pytest(MIXED, "-s", status=1, other=OTHER)
    expected = dict.fromkeys(["test_before", "test_on_ranks", "test_the_last", "test_other"], "passed")
    assert done.outcomes == {**expected, "test_after_it": "error"}, done.output
    assert "of the end of the fixture" in done.output and "the end of the module" in done.output


COVERED = """
import pytest, sys
sys.path.insert(0, ".")
def value(rank):
    if rank == 1:
        return 1
    if rank == 7:
        return 7
    return 0
@pytest.mark.ranks(2)
def test_it(ranks): assert value(ranks.rank) == ranks.rank
"""


def test_coverage(inner_pytest):
    done = inner_pytest(COVERED, "--cov", "--cov-report=term-missing")
    assert done.outcomes == {"test_it": "passed"}
    [line] = [line for line in done.output.splitlines() if line.startswith("test_inner.py")]
    assert line.split()[-1] == "8", done.output  # the line that no rank runs


UNFORKABLE = """
import threading, time
import pytest, torch.distributed as dist
threading.Thread(target=time.sleep, args=(10000,), daemon=True).start()
@pytest.mark.ranks(2)
def test_it(): dist.barrier()
@pytest.mark.ranks(2)
def test_other(ranks): assert ranks.rank == 0
"""


def test_ranks_that_cannot_be_forked(inner_pytest):
    done = inner_pytest(UNFORKABLE, status=1)
    assert done.outcomes == {"test_it": "passed", "test_other": "failed"}
    assert "every rank imports torch and the tests by itself" in done.output
    assert "test_inner.py has started 1 thread," in done.output


BAD = """
import pytest
@pytest.mark.ranks(2, hosts=3)
def test_hosts(): pass
@pytest.mark.ranks(0)
def test_none(): pass
@pytest.mark.ranks(2, unknown=1)
def test_argument(): pass
@pytest.mark.ranks(2)
def test_breakpoint(): breakpoint()
def test_outside():
    from vccl.testing import on_rank
    on_rank(0)
"""


def test_what_is_wrong_is_told(inner_pytest):
    done = inner_pytest(BAD, "-p", "no:warnings", status=1)
    assert set(done.outcomes.values()) == {"failed", "error"}
    for text in (
        "2 ranks cannot be spread evenly over 3 hosts",
        "a test on 0 ranks: their number has to be an integer from 1",
        "@pytest.mark.ranks got an unexpected keyword argument 'unknown'",
        "a rank has no terminal unless pytest is told which one has, as with --rank-pdb 0",
        "this process is no rank of a test: mark the test with @pytest.mark.ranks(n)",
    ):
        assert text in done.output, done.output


def test_debugger_needs_the_terminal(run, tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    output = run([sys.executable, "-m", "pytest", "-n", "2", "--rank-pdb", "0"], status=4, cwd=tmp_path)
    assert "--rank-pdb needs the terminal, which the workers of xdist (-n) do not have" in output
