"""Wrong use of the plugin, and tests that damage their rank. The next test runs as if they had not been."""

import sys

SOURCE = """
import os, sys, signal, time, logging
import pytest, torch
import torch.distributed as dist
from vccl.testing import kill_rank
def test_logs(): logging.getLogger("a").info("first")
@pytest.mark.ranks(2)
def test_exit(): pytest.exit("x")
@pytest.mark.ranks(2)
def test_after_exit(ranks, tmp_path): pass
@pytest.mark.ranks(2.0)
def test_float(): pass
@pytest.mark.ranks(2, device="tpu")
def test_tpu(): pass
@pytest.mark.ranks(2, timeout="x")
def test_timeout(): pass
@pytest.mark.ranks(2, env={"A": 1})
def test_env(): pass
@pytest.mark.ranks(2)
@pytest.mark.skipif("1/0", reason="x")
def test_skipif(): pass
@pytest.mark.ranks(2)
@pytest.mark.skipif(True)
def test_skipif2(): pass
def tensor(rank, size): return torch.ones(3), torch.ones(2, device="vdev")
def test_tensor(rank_pool): assert rank_pool.run(2, tensor)[1][0].sum() == 3
def gen(rank, size): return (i for i in range(3))
def test_gen(rank_pool): rank_pool.run(2, gen)
@pytest.mark.ranks(2)
def test_prop(record_property): record_property("k", lambda: 1)
@pytest.mark.ranks(2)
def test_close(): os.close(1); os.close(2)
@pytest.mark.ranks(2)
def test_after_close(): print("hello"); time.sleep(0)
@pytest.mark.ranks(2)
def test_close2(): sys.stdout.close()
@pytest.mark.ranks(2)
def test_after_close2(): print("hello")
@pytest.mark.ranks(2)
def test_alarm(): signal.alarm(1)
@pytest.mark.ranks(2)
def test_after_alarm(): time.sleep(1.5)
@pytest.mark.ranks(1)
def test_all_killed(): kill_rank(0)
@pytest.mark.ranks(2, timeout=0)
def test_no_timeout(): pass
@pytest.mark.ranks(2)
def test_both(rank_pool): pass
def test_lambda(rank_pool): rank_pool.run(2, lambda r, s: 1)
def test_dying(rank_pool): rank_pool.run(2, gen, dying=[5])
@pytest.mark.ranks(2)
def test_long(): assert list(range(60)) == list(range(59))
@pytest.mark.ranks(2, timeout=2)
def test_stop(ranks):
    if ranks.rank == 1: os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier()
def test_logs2(): logging.getLogger("a").info("second")
"""
# Python 3.13 says of a local object that it cannot get it.
LOST = "get" if sys.version_info[:2] == (3, 13) else "pickle"
ERRORS = {
    "test_float": "a test on 2.0 ranks: their number has to be an integer from 1",
    "test_tpu": "device='tpu': ranks have cpu and vdev; --ranks-device gives others",
    "test_timeout": "timeout='x': this is a number of seconds",
    "test_env": "env={'A': 1}: variables and their values are strings",
    "test_skipif": "Error evaluating 'skipif' condition",
    "test_skipif2": "you need to specify reason=STRING",
    "test_both": "rank_pool is for tests of pytest's own process; this one runs on ranks",
}
FAILURES = {
    "test_exit": "_pytest.outcomes.Exit: x",
    "test_gen": "what the test returns or records cannot be sent: cannot pickle 'generator' object",
    "test_prop": f"what the test returns or records cannot be sent: Can't {LOST} local object",
    "test_lambda": "a function for ranks stands at the top of its module",
    "test_dying": "dying=[5]: there are 2 ranks",
    "test_long": "Left contains one more item: 59",
    "test_stop": "It has not told where it was.",
}
LEFT = {
    "test_close": "the descriptor 1 closed on ranks 0 to 1; the descriptor 2 closed on ranks 0 to 1",
    "test_close2": "sys.stdout: ",
    "test_alarm": "a timer (SIGALRM): True instead of False on ranks 0 to 1",
}


def test_misuse(inner_pytest, tmp_path):
    log = tmp_path / "x.log"
    done = inner_pytest(SOURCE, "-vv", "-o", f"log_file={log}", "-o", "log_file_level=INFO", status=1)
    for name, outcome in done.outcomes.items():
        expected = "error" if name in ERRORS else "failed" if name in FAILURES else "passed"
        assert outcome == expected, f"{name}: {done.output}"
    for name, text in ERRORS.items():
        assert text in done.told(f"ERROR at setup of {name}"), name
    for name, text in FAILURES.items():
        assert text in done.told(name), name
    for name, text in LEFT.items():
        assert f"::{name} has left {text}" in done.output, f"{name}: {done.output}"
    # The processes that collect for ranks have not begun the file anew.
    assert [line.split()[-1] for line in log.read_text().splitlines()] == ["first", "second"]


WARNS = """
import os
import pytest
@pytest.mark.ranks(1)
def test_it(): os.environ["LEFT"] = "1"
"""


def test_warnings_obey_filters(inner_pytest):
    category = "vccl.testing.RanksWarning"
    assert "RanksWarning" not in inner_pytest(WARNS, "-W", f"ignore::{category}").output
    done = inner_pytest(WARNS, "-W", f"error::{category}", status=1)
    assert done.outcomes == {"test_it": "error"}
    assert "has left environment variables: LEFT on rank 0. These ranks were replaced." in done.output


FAILS = """
import pytest
@pytest.mark.ranks(1)
@pytest.mark.parametrize("number", range(6))
def test_it(number): assert number == 7
"""


def test_failures_of_two_workers_of_xdist(inner_pytest):
    """The process that reports receives them in two threads."""
    done = inner_pytest(FAILS, "-n", "2", status=1)
    assert done.outcomes == {f"test_it[{number}]": "failed" for number in range(6)}, done.output
    assert done.output.count("rank 0: failed") == 6


ONCE = """
import os
def pytest_sessionstart(session):
    with open("started", "a") as file:
        file.write("x")
    if os.path.getsize("started") > 1:
        raise ValueError("of the second session")
"""


def test_a_process_that_fails_for_good_is_started_once(inner_pytest, tmp_path):
    (tmp_path / "conftest.py").write_text(ONCE)
    done = inner_pytest(FAILS, status=1)
    assert set(done.outcomes.values()) == {"error"} and len(done.outcomes) == 6, done.output
    assert "ValueError: of the second session" in done.told("ERROR at setup of test_it[5]")
    assert (tmp_path / "started").read_text() == "xx"  # pytest's own session, and that for the ranks
