"""What ranks print to a pipe: lines of several ranks are not mixed, and every byte is as they printed it."""

import sys

import pytest

PIECES = """
rank = os.environ["RANK"].encode()
for number in range(300):
    for piece in (b"<rank ", rank, b" line %d " % number, b"x" * (number % 7) * 1000, b">\\n"):
        os.write(1 + number % 2, piece)
"""


@pytest.mark.parametrize(
    "place", [("--nproc-per-node", 3), ("--hosts", 2, "--nproc-per-node", 2)], ids=["one_host", "two_hosts"]
)
def test_lines_that_ranks_print_in_pieces_stay_whole(vrun, script, place):
    printed = vrun(*place, script(PIECES))
    ranks = 3 if "--hosts" not in place else 4
    expected = [f"<rank {rank} line {n} {'x' * (n % 7) * 1000}>" for rank in range(ranks) for n in range(300)]
    assert sorted(printed.splitlines()) == sorted(expected)


def test_the_order_of_a_rank_stays(vrun, script):
    printed = vrun("--nproc-per-node", 2, script(PIECES))
    numbers = [int(line.split()[3]) for line in printed.splitlines() if line.startswith("<rank 1 ")]
    assert numbers == list(range(300))


def test_an_end_without_a_newline_stays_so(vrun, script):
    path = script("if os.environ['RANK'] == '1': sys.stdout.write('one\\ntwo')")
    assert vrun("--nproc-per-node", 2, path).endswith("one\ntwo")


LATE = """
import time
from vccl.launch import relay

class Late(relay.Relay):
    def _run(self):  # the system runs the thread when the time at the end is over
        while self._end_at is None or time.monotonic() < self._end_at:
            time.sleep(0.01)
        super()._run()

late = Late([1], set(), None)
with late.running():
    late.writers(0, [1])[1].write(b"a line\\n" * 9000 + b"and no end")
"""


def test_nothing_is_lost_where_the_relay_runs_late(run):
    assert run([sys.executable, "-c", LATE]) == "a line\n" * 9000 + "and no end"
