"""What pytest tells of tests that fail on ranks, and that tests after them are not affected."""

import re
from pathlib import Path

import pytest
import ten_ways

TOLD = '''
import ctypes, os, sys, time
import pytest, torch
import torch.distributed as dist
from vccl.testing import on_rank

@pytest.mark.ranks(4)
def test_first_on_top(ranks):
    print("every rank says this")
    store = dist.distributed_c10d._get_default_store()
    if on_rank(2):
        ctypes.CDLL(None).puts(b"of C, without a flush")
        store.wait(["0 came", "1 came", "3 came"])
        raise ValueError("the cause")
    store.set(f"{ranks.rank} came", "")
    dist.all_reduce(torch.ones(2))

@pytest.mark.ranks(4)
def test_alike(ranks):
    assert ranks.rank == 7

@pytest.mark.ranks(3)
def test_death(ranks):
    dist.barrier()
    if on_rank(1):
        print("its last words", file=sys.stderr)
        os.kill(os.getpid(), 9)
    dist.all_reduce(torch.ones(1))

@pytest.mark.ranks(3)
@pytest.mark.timeout(3)
def test_hang(ranks):
    dist.barrier()
    if on_rank(1):
        time.sleep(3600)
    dist.all_reduce(torch.ones(3))

@pytest.mark.ranks(2, timeout=3)
def test_hang_without_python(ranks):
    if on_rank(1):
        ctypes.PyDLL(None).sleep(3600)

@pytest.mark.ranks(2)
def test_freed(ranks):
    """A rank that does not come out of Python is ended when another one has failed."""
    if on_rank(0):
        raise ValueError
    while True:
        time.sleep(0.01)

@pytest.fixture
def broken(ranks):
    if on_rank(1):
        raise ValueError("of the fixture")
    yield

@pytest.mark.ranks(2)
def test_setup(broken): dist.barrier()

@pytest.fixture
def breaks_later(ranks):
    yield
    if on_rank(1):
        raise ValueError("of the end of the fixture")

@pytest.mark.ranks(2)
def test_teardown(breaks_later): pass

def fails(rank, size):
    assert rank == 0

def test_function(rank_pool):
    rank_pool.run(2, fails)

@pytest.mark.ranks(2)
def test_a_child_is_left(ranks):
    import subprocess
    process = subprocess.Popen(["sleep", "3600"])
    with open(os.environ["PIDS"], "a") as file:
        file.write(f"{os.getpid()} {process.pid} ")

@pytest.mark.ranks(2)
def test_after_all_that(): dist.barrier()
'''
PASSED = {"test_a_child_is_left", "test_after_all_that"}
ERRORS = {"test_setup", "test_teardown"}


def test_what_is_told(inner_pytest):
    done = inner_pytest(TOLD, status=1, env={"COLUMNS": "200"})
    for name, outcome in done.outcomes.items():
        expected = "passed" if name in PASSED else "error" if name in ERRORS else "failed"
        assert outcome == expected, done.output

    told = done.told("test_first_on_top")
    first, cause = told.index("rank 2: failed, the first"), told.index("ValueError: the cause")
    assert first < cause < told.rindex("dist.all_reduce(torch.ones(2))")
    assert "Captured stdout of ranks 0 to 1, 3" in told
    assert (
        "Captured stdout of rank 2" in told and "of C, without a flush" in told.split("Captured stdout")[-1]
    )

    told = done.told("test_alike")
    assert "ranks 0 to 3: failed" in told and told.count("def test_alike") == 1
    assert all(f"assert {rank} == 7" in told for rank in range(4))

    told = done.told("test_death")
    assert "rank 1: killed by SIGKILL (pid" in told.splitlines()[1]
    assert "its last words:\nits last words" in told and "its last words:" in told

    told = done.told("test_hang")
    assert "rank 1: no end in time (pid" in told and "time.sleep(3600)" in told
    assert (
        "waits in all_reduce(float32, 3 elements, SUM) on cpu, operation 2 of group default_pg, for rank 1"
        in told
    )
    assert "dist.all_reduce(torch.ones(3))" in told and "pluggy" not in told

    assert 'test_inner.py", line' in done.told("test_hang_without_python")  # by faulthandler
    assert "no end after another rank had failed, so it was killed" in done.told("test_freed")
    assert "ERROR at setup of test_setup" in done.output and "of the fixture" in done.output
    assert "ERROR at teardown of test_teardown" in done.output and "of the end of the fixture" in done.output
    assert "rank 1: failed" in done.told("test_function") and "session.py" not in done.told("test_function")
    assert "test_a_child_is_left has left the process" in done.output
    assert re.search(r"test_alike - ranks 0 to 3: assert \d == 7", done.output)
    assert "test_death - rank 1: killed by SIGKILL" in done.output


@pytest.mark.daily
def test_ten_ways(inner_pytest):
    source = Path(ten_ways.__file__).read_text()
    done = inner_pytest(source, status=1, env={"VDEV_MEMORY": "512M", "COLUMNS": "200"})
    assert len(done.outcomes) == ten_ways.COUNT
    for number in range(ten_ways.COUNT):
        way, name = ten_ways.way_of(number), f"test_it[{number}]"
        told = ten_ways.WAYS.get(way, "")
        assert done.outcomes[name] == ("failed" if told else "passed"), f"{way}: {done.output}"
        assert not told or f"{name} - {told}" in done.output, f"{way}: {done.output}"
        left = ten_ways.LEFT.get(way)
        warned = [line for line in done.output.splitlines() if f"{name} has left" in line]
        assert bool(warned) == bool(left), f"{way}: {done.output}"
        assert not left or any(left in line for line in warned), f"{way}: {warned}"
