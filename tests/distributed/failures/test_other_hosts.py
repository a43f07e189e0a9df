"""What vccl.top, and the ranks themselves, say of ranks on another machine.

Each rank has a pid namespace of its own here, with its own /proc, so no rank sees the process of another one.
"""

import json
import re
import shutil
import subprocess
import sys

import pytest

# A process that is the first of a namespace cannot be stopped from inside, so a shell is the first.
UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
IN_A_NAMESPACE = [*UNSHARE, "sh", "-c", '"$@"; exit $?', "sh"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", "--no-python"]

RANK = """
import json, os, pathlib, subprocess, sys, threading, time
import torch, torch.distributed as dist

what, looked = sys.argv[1], pathlib.Path("looked")
rank = int(os.environ["RANK"])
os.environ["VCCL_HOSTID"] = f"host{rank}"
dist.init_process_group("vccl")
dist.all_reduce(torch.ones(4))

def load_batch():
    while not looked.exists():
        time.sleep(0.1)

def stop():
    wait = "while [ ! -e looked ]; do sleep 0.1; done"
    subprocess.Popen(["sh", "-c", f"kill -STOP {os.getpid()}; {wait}; kill -CONT {os.getpid()}"]).wait()

def look():
    # The job stands for longer than `vccl.top` needs to see it.
    while True:
        top = [sys.executable, "-m", "vccl.top", "--json"]
        found = json.loads(subprocess.run(top, stdout=subprocess.PIPE, check=False).stdout)
        if found["jobs"][0]["diagnosis"]:
            break
        time.sleep(0.1)
    pathlib.Path("found").write_text(json.dumps(found))
    if what == "sleeps":
        # The ranks' own warnings say the same.
        while not pathlib.Path("errors").read_text().count("Rank 1 sleeps in load_batch"):
            time.sleep(0.1)
    looked.touch()

if rank == 0:
    threading.Thread(target=look).start()
if rank == 1:
    {"sleeps": load_batch, "stopped": stop}[what]()
sum = torch.ones(4)
dist.all_reduce(sum)
assert sum.eq(3).all()
dist.destroy_process_group()
"""

CIRCLE = """
import os
import torch, torch.distributed as dist

rank = int(os.environ["RANK"])
os.environ["VCCL_HOSTID"] = f"host{rank}"
dist.init_process_group("vccl")
torch.accelerator.set_device_index(0)
groups = [dist.new_group([i, (i + 1) % 3], group_desc=f"g{i}") for i in range(3)]
x = torch.ones(4, device="vdev:0")

def call(order):
    for work in [dist.all_reduce(x, group=groups[i], async_op=True) for i in order]:
        work.wait()
    torch.accelerator.synchronize()

mine = [rank, (rank - 1) % 3]
call(sorted(mine))
try:
    while True:
        call(mine)
except dist.DistBackendError as error:
    with open(f"error {rank}", "w") as file:
        file.write(str(error))
"""


@pytest.fixture(scope="module", autouse=True)
def pid_namespaces():
    if not shutil.which("unshare"):
        pytest.skip("there is no unshare(1)")
    if (done := subprocess.run([*IN_A_NAMESPACE, "true"], capture_output=True, text=True)).returncode:
        pytest.skip(f"this user may not make pid namespaces: {done.stderr.strip()}")


def job_of(run, tmp_path, what):
    """Returns what vccl.top has found in a namespace, of a job of which rank 1 does `what`."""
    (tmp_path / "rank.py").write_text(RANK)
    command = [sys.executable, *TORCHRUN, *IN_A_NAMESPACE, sys.executable, "rank.py", what]
    env = {"VCCL_WARN_AFTER": "1", "VCCL_LINK_TIMEOUT": "60"}
    run(["sh", "-c", '"$@" 2>errors', "sh", *command], env=env)
    (job,) = json.loads((tmp_path / "found").read_text())["jobs"]
    assert job["world_size"] == 3
    return job


def test_a_rank_that_sleeps_on_another_machine(run, tmp_path):
    job = job_of(run, tmp_path, "sleeps")
    assert [(rank["rank"], rank["host"], rank["far"]) for rank in job["ranks"]] == [
        (0, "host0", False),
        (1, "host1", True),
        (2, "host2", True),
    ]
    assert job["unknown"] == []
    (finding,) = job["diagnosis"]
    assert (finding["kind"], finding["culprits"]) == ("missing", [1])
    waits = "Ranks 0, 2 wait in all_reduce(float32 [4]), collective 2 of group default_pg"
    assert finding["text"].startswith(waits)
    assert finding["text"].endswith("Rank 1 sleeps in load_batch (rank.py:13).")
    (group,) = job["groups"]
    assert {rank: calls["called"] for rank, calls in group["sequence"].items()} == {"0": 2, "1": 1, "2": 2}


def test_a_rank_that_is_stopped_on_another_machine(run, tmp_path):
    job = job_of(run, tmp_path, "stopped")
    assert [rank["rank"] for rank in job["ranks"]] == [0, 2]
    assert job["unknown"] == [{"host": "host1", "ranks": [1], "silent": True}]
    (finding,) = job["diagnosis"]
    assert (finding["kind"], finding["culprits"]) == ("missing", [1])
    assert finding["text"].endswith("Rank 1 is on host host1, where nobody answers.")


def test_a_circle_of_groups_on_three_machines(run, tmp_path):
    """Rank 0 calls g0 before g2, rank 1 calls g1 before g0, and rank 2 calls g2 before g1."""
    (tmp_path / "rank.py").write_text(CIRCLE)
    run([sys.executable, *TORCHRUN, *IN_A_NAMESPACE, sys.executable, "rank.py"], env={"VCCL_CHECK": "order"})
    errors = [(tmp_path / f"error {rank}").read_text() for rank in range(3)]
    # Whoever has found the circle says so, and the others say that its group was aborted.
    told = [error for error in errors if "calls of several groups that wait for each other" in error]
    assert told, errors
    for rank, (first, second) in enumerate([("g0", "g2"), ("g1", "g0"), ("g2", "g1")]):
        call = r"all_reduce\(float32 \[4\]\), collective \d+ of group {}, in \S+ \(rank\.py:13\)"
        step = f"Rank {rank} called {call.format(first)}, before {call.format(second)}"
        assert re.search(step, told[0]), told
