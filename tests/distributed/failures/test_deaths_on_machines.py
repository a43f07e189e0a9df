"""A rank that dies on another machine is noticed by the end of its connection alone.

Each rank has a pid namespace of its own here, so no rank can observe the process of another one.
"""

import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.daily

IN_A_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child"]

# The groups' timeout is far longer than the test may take. os._exit() ends the rank without a goodbye.
RANK = """
import datetime, os, sys
import torch, torch.distributed as dist

what, victim = sys.argv[1], int(sys.argv[2])
os.environ["VCCL_HOSTID"] = os.environ["RANK"]
dist.init_process_group("vccl", timeout=datetime.timedelta(hours=1))
dist.all_reduce(torch.ones(4))
rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
store.set(f"through {rank}", "")
store.wait([f"through {other}" for other in range(dist.get_world_size())])
if rank == victim:
    os._exit(0)
try:
    if what == "card":
        dist.all_reduce(torch.ones(4, device="vdev"))
        torch.accelerator.synchronize()
    else:
        dist.new_group([1, victim])
        if rank != 1:
            store.wait(["noticed 1"], datetime.timedelta(seconds=200))  # a rank that computes meanwhile
except dist.DistBackendError as error:
    # Not to a stream, where what others print may come before it on the same line.
    with open(f"error {rank}", "w") as file:
        file.write(str(error))
    store.set(f"noticed {rank}", "")
if rank == 0:
    # This process serves the store, so it stays until the others have their errors.
    others = range(1, dist.get_world_size()) if what == "card" else [1]
    store.wait([f"noticed {other}" for other in others if other != victim], datetime.timedelta(seconds=200))
"""


def texts(run, tmp_path, size: int, *arguments) -> dict[int, str]:
    """Runs `size` ranks, and returns the error text of each rank that has one."""
    (tmp_path / "rank.py").write_text(RANK)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    command = [*torchrun, "--no-python", *IN_A_NAMESPACE, sys.executable, "rank.py", *map(str, arguments)]
    run(command)
    files = {rank: tmp_path / f"error {rank}" for rank in range(size)}
    return {rank: file.read_text() for rank, file in files.items() if file.exists()}


@pytest.fixture(scope="module", autouse=True)
def pid_namespaces():
    if not shutil.which("unshare"):
        pytest.skip("there is no unshare(1)")
    if (done := subprocess.run([*IN_A_NAMESPACE, "true"], capture_output=True, text=True)).returncode:
        pytest.skip(f"this user may not make pid namespaces: {done.stderr.strip()}")


def test_first_card_collective_with_a_dead_rank_on_another_machine(run, tmp_path):
    found = texts(run, tmp_path, 4, "card", 2)
    assert set(found) == {0, 1, 3}
    for text in found.values():
        # A neighbour on the ring notices. It tells rank 0, which is no neighbour of rank 2.
        assert text.startswith(
            "the connection to rank 2 (pid 1, host 2) ended while group default_pg was put together"
        )


def test_new_group_with_a_dead_rank_on_another_machine(run, tmp_path):
    found = texts(run, tmp_path, 3, "group", 2)
    assert set(found) == {1}
    assert found[1].startswith(
        "the connection to rank 2 (1 of group 1, ranks 1, 2; pid 1, host 2) ended while group 1 "
        "was put together"
    )


def test_new_group_with_a_dead_rank_that_is_no_neighbour(run, tmp_path):
    found = texts(run, tmp_path, 8, "group", 4)
    assert set(found) == {1}
    # Rank 1 has no link to rank 4. The neighbours of both have passed the news on.
    assert found[1].startswith(
        "the connection to rank 4 (1 of group 1, ranks 1, 4; pid 1, host 4) ended while group 1 "
        "was put together"
    )
