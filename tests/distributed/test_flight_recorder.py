"""The flight recorder: what dumps have, who asks for them, and what torch's analyzer finds in them."""

import json
import os
import pickle
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.utils import cpp_extension

from vccl import _C, _torch_version

# The keys of torch 2.13's dumps.
KEYS = {"version", "entries", "pg_config", "pg_status", "nccl_comm_state", "comm_lib_version"}
ENTRY_KEYS = {
    "record_id", "pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "op_id", "profiling_name",
    "input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "time_created_ns",
    "time_discovered_started_ns", "time_discovered_completed_ns", "duration_ms", "state", "retired", "is_p2p",
    "timeout_ms", "frames", "thread_id", "thread_name",
}  # fmt: skip
SECONDS = 120  # for what comes soon, however slow the machine is


def dump() -> dict:
    return pickle.loads(_distributed_c10d._dump_fr_trace())


def entries_since(number: int) -> list[dict]:
    return [entry for entry in dump()["entries"] if entry["record_id"] >= number]


def next_number() -> int:
    entries = dump()["entries"]
    return entries[-1]["record_id"] + 1 if entries else 0


@pytest.mark.ranks(2)
@pytest.mark.parametrize("device", ["vdev", "cpu"])
def test_a_dump_has_what_torch_has(ranks, device):
    first = next_number()
    before = time.time_ns()
    x = torch.ones(3, 2, device=device, dtype=torch.bfloat16)
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True).wait()
    dist.all_gather([torch.ones(4, device=device) for _ in range(2)], torch.ones(4, device=device))
    if device == "vdev":
        torch.vdev.synchronize()
    found = dump()
    # Faults may have struck the rank in an earlier test.
    assert found.keys() - {"vccl_faults"} == KEYS and found["version"] == "2.10"
    assert found["comm_lib_version"].startswith("vccl ")
    name, description = found["entries"][-1]["process_group"]
    assert found["pg_config"][name] == {"name": name, "desc": description, "ranks": "[0, 1]"}
    one, two, three = entries_since(first)
    assert one.keys() == ENTRY_KEYS
    assert one["profiling_name"] == two["profiling_name"] == "nccl:all_reduce"
    assert one["input_sizes"] == one["output_sizes"] == [[3, 2]]
    assert one["input_dtypes"] == one["output_dtypes"] == ["BFloat16"]
    assert (one["state"], one["retired"], one["is_p2p"], one["frames"]) == ("completed", True, False, [])
    assert before <= one["time_created_ns"] <= one["time_discovered_started_ns"]
    assert one["time_discovered_started_ns"] <= one["time_discovered_completed_ns"] <= time.time_ns()
    assert two["collective_seq_id"] == one["collective_seq_id"] + 1
    assert three["profiling_name"] == "nccl:all_gather" and three["output_sizes"] == [[2, 4]]
    status = found["pg_status"][str(one["pg_id"])]
    assert status["last_completed_collective"] == three["collective_seq_id"]

    as_json = json.loads(_distributed_c10d._dump_fr_trace_json())
    last = as_json["entries"][-1]
    assert last["profiling_name"] == "nccl:all_gather" and last["process_group"] == [name, description]
    assert as_json["pg_status"][str(one["pg_id"])]["last_completed_collective"].isdigit()
    assert "entries" not in json.loads(_distributed_c10d._dump_fr_trace_json(includeCollectives=False))
    assert "entries" not in pickle.loads(_distributed_c10d._dump_fr_trace(includeCollectives=False))
    assert pickle.loads(_distributed_c10d._dump_fr_trace(onlyActive=True))["entries"] == []


@pytest.mark.ranks(2)
@pytest.mark.parametrize("device", ["vdev", "cpu"])
def test_messages_and_batches_are_recorded(ranks, device):
    first, peer = next_number(), 1 - ranks.rank
    if ranks.rank == 0:
        dist.send(torch.ones(5, device=device), 1, tag=3)
    else:
        dist.recv(torch.ones(5, device=device), tag=3)  # from any rank
    operations = [
        dist.P2POp(dist.isend, torch.ones(2, device=device), peer),
        dist.P2POp(dist.irecv, torch.ones(2, device=device), peer),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    if device == "vdev":
        torch.vdev.synchronize()
    message, *batch = entries_since(first)
    assert message["profiling_name"] == ("nccl:send 0->1" if ranks.rank == 0 else "nccl:recv 1<-0")
    assert message["is_p2p"] and message["state"] == "completed"
    names = [entry["profiling_name"] for entry in batch]
    assert names == [f"nccl:send {ranks.rank}->{peer}", f"nccl:recv {ranks.rank}<-{peer}", "nccl:coalesced"]
    assert len({entry["p2p_seq_id"] for entry in batch}) == 1
    assert [entry["op_id"] - message["op_id"] for entry in batch] == [1, 2, 3]


@pytest.mark.ranks(2)
def test_each_replay_of_a_graph_is_recorded(ranks):
    x = torch.ones(4, device="vdev")
    dist.all_reduce(x)
    torch.vdev.synchronize()
    graph = torch.vdev.VDEVGraph()
    with torch.vdev.graph(graph):
        dist.all_reduce(x)
    first = next_number()
    for _ in range(3):
        graph.replay()
    torch.vdev.synchronize()
    replays = entries_since(first)
    assert [entry["profiling_name"] for entry in replays] == ["nccl:all_reduce"] * 3
    assert all(entry["state"] == "completed" for entry in replays)
    numbers = [entry["collective_seq_id"] for entry in replays]
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    everywhere = [None, None]
    dist.all_gather_object(everywhere, numbers)
    assert everywhere[0] == everywhere[1]


@pytest.mark.ranks(2)
def test_other_processes_read_the_record(ranks):
    dist.barrier()
    found = {read["pid"]: read for read in _C._flight_recorders()}
    dist.barrier()
    pids = [None, None]
    dist.all_gather_object(pids, os.getpid())
    for rank, pid in enumerate(pids):
        read = found[pid]
        assert (read["rank"], read["size"], read["alive"], read["problem"]) == (rank, 2, True, "")
        assert json.loads(read["dump"])["entries"]
    assert found[pids[0]]["job"] == found[pids[1]]["job"] != ""


# ---- files


SCRIPT = """
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("vccl", timeout=datetime.timedelta(seconds=3))
rank = dist.get_rank()
{body}
"""


def in_ranks(start, tmp_path, body, size=4, **env):
    """Starts `size` ranks that run `body`. Returns the process of vrun, and the folder of their dumps."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    script = tmp_path / "ranks.py"
    script.write_text(SCRIPT.format(body=body))
    env = {"VCCL_RECORDER_FILE": str(folder / "rank_"), **env}
    return start([sys.executable, "-m", "vccl.launch.vrun", "--cards", str(size), script], env=env), folder


def analyze(run, folder, *options) -> str:
    """Returns what torchfrtrace says of the dumps."""
    return run([sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", folder, *options])


def test_torchfrtrace_names_a_missing_rank(start, run, tmp_path):
    """Rank 3 computes while the others wait for it. They write its dump, too."""
    process, folder = in_ranks(
        start,
        tmp_path,
        """
dist.all_reduce(torch.ones(2))
if rank == 3:
    time.sleep(8)
else:
    try:
        dist.all_reduce(torch.ones(2))
    except dist.DistBackendError:
        os._exit(0)
os._exit(0)
""",
    )
    process.output(SECONDS)
    assert sorted(path.name for path in folder.iterdir()) == [f"rank_{rank}" for rank in range(4)]
    waiting = pickle.loads((folder / "rank_0").read_bytes())["entries"][-1]
    assert (waiting["state"], waiting["retired"]) == ("started", True)
    said = analyze(run, folder)
    assert "Not all ranks joining collective, sequence number: 2" in said
    assert "missing ranks: {3}" in said


def test_torchfrtrace_names_a_mismatch(start, run, tmp_path):
    """The dump of the rank that a fault has struck says so, which torch's analyzer does not mind."""
    process, folder = in_ranks(
        start,
        tmp_path,
        """
dist.all_reduce(torch.ones(2))
try:
    dist.broadcast(torch.ones(2), 0) if rank == 2 else dist.all_reduce(torch.ones(2))
except dist.DistBackendError:
    pass
os._exit(0)
""",
        VCCL_FAULTS="rank=1,op=all_reduce,n=1,do=stall:0.01",
    )
    process.output(SECONDS)
    dumps = [pickle.loads((folder / f"rank_{rank}").read_bytes()) for rank in range(4)]
    assert [dumps[rank].get("vccl_faults") for rank in (0, 2, 3)] == [None] * 3
    fault = "stall before all_reduce 1 of group default_pg, step 0"
    assert dumps[1]["vccl_faults"] == {"struck": 1, "last": fault}
    said = analyze(run, folder)
    assert "Collective sequence number: 2 has errors" in said
    assert re.search(
        r"Culprit rank 2; .*'all_reduce' does not match found collective type: 'broadcast'", said
    )


def test_torchfrtrace_names_a_message_without_its_peer(start, run, tmp_path):
    process, folder = in_ranks(
        start,
        tmp_path,
        """
pair = dist.new_group([2, 3], timeout=datetime.timedelta(seconds=3))
dist.all_reduce(torch.ones(2))
if rank == 2:
    try:
        dist.recv(torch.ones(2), 3, group=pair)
    except dist.DistBackendError:
        pass
else:
    time.sleep(6)
os._exit(0)
""",
    )
    process.output(SECONDS)
    said = analyze(run, folder)
    assert "nccl:recv 0<-1" in said  # these are their numbers in the pair
    assert "missing ranks: {3}" in said


DEATHS = """
import signal
from vccl import _C

def count(what):
    # Of others: each process has its own recorder open once.
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    recorders = [link for link in links if os.path.lexists(link) and "vccl-flight" in os.readlink(link)]
    print(what, rank, len(recorders) - 1, flush=True)

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # vrun's, once a rank has died
dist.all_reduce(torch.ones(7))
count("holds")
dist.barrier()
if rank == DEAD:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(torch.ones(2))
except dist.DistBackendError:
    pass
(job,) = [job for job in _C._diagnose(0)["jobs"] if os.getpid() in [entry["pid"] for entry in job["ranks"]]]
states = {entry["rank"]: (entry["state"], entry["operations"]) for entry in job["ranks"]}
print("sees", states[DEAD], flush=True)
dist.destroy_process_group()
count("leaves")
os._exit(0)
"""


@pytest.mark.parametrize("dead", [0, 2])
def test_the_record_of_a_dead_rank_can_be_read(start, tmp_path, dead):
    """Rank 0 holds the records of the others, and rank 1 that of rank 0, until the group is destroyed."""
    process, folder = in_ranks(start, tmp_path, DEATHS.replace("DEAD", str(dead)), size=3)
    said = process.output(SECONDS)
    assert all(f"holds {rank} {held}" in said for rank, held in enumerate([2, 1, 0])), said
    survivors = [rank for rank in range(3) if rank != dead]
    assert all(f"leaves {rank} 0" in said for rank in survivors), said
    assert said.count("sees ('dead', 2)") >= 1, said
    entries = pickle.loads((folder / f"rank_{dead}").read_bytes())["entries"]
    assert [entry["profiling_name"] for entry in entries] == ["nccl:all_reduce", "nccl:all_reduce_barrier"]


WAIT = """
dist.all_reduce(torch.ones(2))
print("ready", flush=True)
time.sleep(100)
"""


def wait_for_files(folder: Path, count: int) -> list[dict]:
    deadline = time.monotonic() + SECONDS
    while True:
        paths = [path for path in folder.iterdir() if path.name.startswith("rank_")]
        if len(paths) >= count:
            return [pickle.loads(path.read_bytes()) for path in sorted(paths)]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_for_ready(process, count: int) -> None:
    deadline = time.monotonic() + SECONDS
    while process.printed().count("ready") < count:
        assert time.monotonic() < deadline and process.poll() is None, process.printed()
        time.sleep(0.05)


def ranks_of(folder: Path) -> list[int]:
    """Returns the processes whose dumps go to the folder."""
    place = f"VCCL_RECORDER_FILE={folder}".encode()
    pids = [read["pid"] for read in _C._flight_recorders()]
    return [pid for pid in pids if place in Path(f"/proc/{pid}/environ").read_bytes()]


def test_a_signal_asks_for_a_dump(start, tmp_path):
    process, folder = in_ranks(start, tmp_path, WAIT, size=2)
    wait_for_ready(process, 2)
    for pid in ranks_of(folder):
        os.kill(pid, signal.SIGUSR1)
    for found in wait_for_files(folder, 2):
        assert found["entries"][-1]["profiling_name"] == "nccl:all_reduce"
    assert process.poll() is None


def test_a_file_that_appears_asks_for_a_dump(start, tmp_path):
    trigger = tmp_path / "dump now"
    process, folder = in_ranks(start, tmp_path, WAIT, size=2, VCCL_RECORDER_TRIGGER=str(trigger))
    wait_for_ready(process, 2)
    (tmp_path / "another file").touch()
    trigger.touch()
    assert len(wait_for_files(folder, 2)) == 2


def test_a_program_keeps_its_own_handler(start, tmp_path):
    body = """
import signal
signal.signal(signal.SIGUSR1, lambda *_: print("mine", flush=True))
dist.destroy_process_group()
dist.init_process_group("vccl")
os.kill(os.getpid(), signal.SIGUSR1)
time.sleep(0.5)
"""
    process, folder = in_ranks(start, tmp_path, body, size=1)
    assert "mine" in process.output(SECONDS)
    assert list(folder.iterdir()) == []


WRITER = """
#include <fstream>
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>

struct Writer : c10d::DebugInfoWriter {
  explicit Writer(std::string name) : DebugInfoWriter(name, 0) {}
  void write(const std::string& trace) override { std::ofstream(filename_, std::ios::binary) << trace; }
};

extern "C" void register_writer(const char* name) {
  c10d::DebugInfoWriter::registerWriter(std::make_unique<Writer>(name));
}
"""


@pytest.mark.daily
@pytest.mark.skipif(not shutil.which("c++"), reason="needs a compiler")
def test_a_registered_writer_gets_the_dump(start, run, tmp_path):
    library, source = tmp_path / "writer.so", tmp_path / "writer.cpp"
    source.write_text(WRITER)
    includes = [f"-I{path}" for path in cpp_extension.include_paths()]
    libraries = [f"-L{path}" for path in cpp_extension.library_paths()]
    flags = ["-std=c++20", "-O0", "-shared", "-fPIC", "-DUSE_DISTRIBUTED"]
    run(["c++", *flags, *includes, source, "-o", library, *libraries, "-ltorch_cpu", "-lc10"])
    written = tmp_path / "written_"
    body = f"""
import ctypes
ctypes.CDLL({str(library)!r}).register_writer({str(written)!r}.encode())
dist.all_reduce(torch.ones(2))
os.kill(os.getpid(), 10)
time.sleep(1)
"""
    process, _ = in_ranks(start, tmp_path, body, size=1, VCCL_RECORDER_FILE=None)
    process.output(SECONDS)
    found = pickle.loads(Path(f"{written}0").read_bytes())
    assert found["entries"][-1]["profiling_name"] == "nccl:all_reduce"


def test_torchs_variables_count_where_vccls_are_unset(start, tmp_path):
    body = """
for _ in range(30):
    dist.all_reduce(torch.ones(2))
os.kill(os.getpid(), 10)
time.sleep(1)
"""
    name = str(tmp_path / "dumps" / "rank_")
    variables = {"TORCH_FR_DUMP_TEMP_FILE": name, "TORCH_FR_BUFFER_SIZE": "7", "VCCL_RECORD_STACKS": "1"}
    process, folder = in_ranks(start, tmp_path, body, size=1, VCCL_RECORDER_FILE=None, **variables)
    process.output(SECONDS)
    (found,) = wait_for_files(folder, 1)
    assert [entry["collective_seq_id"] for entry in found["entries"]] == list(range(24, 31))
    frames = found["entries"][0]["frames"]
    assert any(frame["name"] == "all_reduce" for frame in frames)
    assert any(frame["filename"].endswith("ranks.py") and frame["line"] > 5 for frame in frames)


def test_frames_of_cpp_stand_between_those_of_python(start, tmp_path):
    body = """
def training_step():
    dist.all_reduce(torch.ones(2))
training_step()
os.kill(os.getpid(), 10)
time.sleep(1)
"""
    process, folder = in_ranks(start, tmp_path, body, size=1, TORCH_FR_CPP_STACK="1")
    process.output(SECONDS)
    (found,) = wait_for_files(folder, 1)
    names = [frame["name"] for frame in found["entries"][-1]["frames"]]
    of_group = next(place for place, name in enumerate(names) if "ProcessGroupVccl::allreduce" in name)
    # In the release for CUDA, functions of torch 2.15 have no names.
    named = "c10d" if _torch_version.is_one_of("<2.15") else "??"
    assert any(named in name for name in names[of_group + 1 : names.index("all_reduce")])
    assert of_group < names.index("all_reduce") < names.index("training_step")


def test_nothing_is_recorded_on_request(start, tmp_path):
    body = """
from vccl import _C
dist.all_reduce(torch.ones(2))
assert not any(found["pid"] == os.getpid() for found in _C._flight_recorders())
os.kill(os.getpid(), 0)
print("passed")
"""
    process, folder = in_ranks(start, tmp_path, body, size=1, VCCL_RECORDER_SIZE="0")
    assert "passed" in process.output(SECONDS)
    assert list(folder.iterdir()) == []


def test_a_trigger_in_no_folder_is_an_error(start, tmp_path):
    process, _ = in_ranks(start, tmp_path, "", size=1, VCCL_RECORDER_TRIGGER=str(tmp_path / "no" / "file"))
    output = process.output(SECONDS)
    assert "VCCL_RECORDER_TRIGGER is" in output and "cannot be watched: No such file or directory" in output
