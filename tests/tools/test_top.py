"""python -m vccl.top: jobs that run and stand, as text and JSON."""

import json
import sys
import time
from pathlib import Path

import pytest

from vccl.top import cli, jobs, screen, traffic

SCRIPT = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("vccl")
rank = dist.get_rank()
card = torch.ones(1 << 16, device=f"vdev:{rank}")

def load_batch():
    time.sleep(1000)

for _ in range(3):
    dist.all_reduce(card)
torch.accelerator.synchronize(rank)
if rank == 1 and sys.argv[1] == "stands":
    load_batch()
while True:
    dist.all_reduce(card)
    torch.accelerator.synchronize(rank)
"""


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # a process of another job, which has ended meanwhile
        return ""


def wait_for_job(process, holds):
    """Returns the job of vrun's ranks once `holds(job)` does."""
    script = next(str(part) for part in process.args if str(part).endswith("top_job.py"))
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        for job in jobs.look()["jobs"]:
            if script in command_line(job["ranks"][0]["pid"]) and holds(job):
                return job
        time.sleep(0.2)
    pytest.fail(process.printed())


def start_job(start, tmp_path, *arguments, **env):
    script = tmp_path / "top_job.py"
    script.write_text(SCRIPT)
    return start([sys.executable, "-m", "vccl.launch.vrun", "--cards", "2", script, *arguments], env=env)


def test_a_job_that_stands(start, tmp_path, capsys):
    process = start_job(start, tmp_path, "stands", VCCL_WARN_AFTER="1")
    job = wait_for_job(process, lambda job: job["diagnosis"])
    (finding,) = job["diagnosis"]
    assert (finding["kind"], finding["culprits"]) == ("missing", [1])
    assert "Rank 1 sleeps in load_batch (top_job.py:8)" in finding["text"]
    waiting, missing = job["ranks"]
    assert (waiting["state"], waiting["call"], waiting["card"]) == ("waits", "all_reduce(float32 [65536])", 0)
    assert (missing["state"], missing["call"], missing["python_lock"]) == ("sleeps", None, False)
    assert missing["stack"][0]["function"] == "load_batch"
    (wait,) = job["waits"]
    assert (wait["rank"], wait["for"]) == (0, [1])
    (group,) = job["groups"]
    assert group["sequence"]["0"]["called"] == group["sequence"]["1"]["called"] + 1 == 4

    assert cli.main(["--json", "--pid", str(missing["pid"])]) == 3
    (same,) = json.loads(capsys.readouterr().out)["jobs"]
    assert same["id"] == job["id"]
    assert cli.main(["--once", "--job", job["id"][:8]]) == 3
    text = capsys.readouterr().out
    assert "load_batch (top_job.py:8)" in text and "MISSING: Rank 0 waits in" in text
    assert cli.main(["--json", "--pid", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == []
    while "goes on waiting" not in process.printed():
        assert process.poll() is None, process.printed()
        time.sleep(0.1)
    assert "rank 0 waited 1 s for rank 1 to begin all_reduce" in process.printed()


def test_faults_are_told_with_the_rank_that_they_struck(start, tmp_path):
    plan = "rank=1,op=all_reduce,n=2,at=before,do=stall:0.01"
    process = start_job(start, tmp_path, "stands", VCCL_FAULTS=plan)
    job = wait_for_job(process, lambda job: job["diagnosis"])
    assert [rank["faults"] for rank in job["ranks"]] == [0, 1]
    fault = "stall before all_reduce 2 of group default_pg, step 0"
    assert job["ranks"][1]["last_fault"] == fault
    (finding,) = job["diagnosis"]
    place = f"load_batch (top_job.py:8); the last fault that struck it on purpose was {fault}."
    assert place in finding["text"]
    found = {"jobs": [job], "unreadable": []}
    assert f"Faults of a plan have struck rank 1: 1, the last one {fault}." in screen.as_text(found)


def test_a_job_that_runs_at_full_speed(start, tmp_path):
    process = start_job(start, tmp_path, "runs")
    # The recorders are read one after the other. A look that has to wait in between finds no operation that
    # both still have, and so no traffic.
    job = wait_for_job(
        process,
        lambda job: (
            min(rank["operations"] for rank in job["ranks"]) > 200
            and job["groups"][0]["collectives_per_minute"]
        ),
    )
    assert not [finding for finding in job["diagnosis"] if finding["kind"] != "slow"]
    assert all(rank["stack"] == [] and rank["python_lock"] is None for rank in job["ranks"])
    assert job["groups"][0]["bytes_per_s"] > 0
    before = job["ranks"][0]["operations"]
    later = wait_for_job(process, lambda found: found["ranks"][0]["operations"] > before)
    assert later["id"] == job["id"] and process.poll() is None


def recorder(entries):
    dump = {
        "pg_config": {"0": {"ranks": "[0, 1]"}},
        "entries": [
            {
                "is_p2p": False,
                "process_group": ["0", "default_pg"],
                "collective_seq_id": number,
                "time_created_ns": start,
                "time_discovered_started_ns": start,
                "time_discovered_completed_ns": end,
                "input_sizes": [[256]],
                "input_dtypes": ["Float"],
                "output_sizes": [[256]],
                "output_dtypes": ["Float"],
            }
            for number, start, end in entries
        ],
    }
    return json.dumps(dump)


def test_the_rank_that_others_wait_for():
    second = 1_000_000_000
    calls = range(1, 11)
    late = recorder([(n, 10 * n * second + 2 * second, 10 * n * second + 3 * second) for n in calls])
    early = recorder([(n, 10 * n * second, 10 * n * second + 3 * second) for n in calls])
    flows = traffic.of_job({0: early, 1: late})
    # The last minute has the collectives 4 to 10, of 1 KiB and one second each.
    assert flows["0"].collectives == 7 and flows["0"].bytes_per_second == pytest.approx(1024)
    assert flows["0"].lost_s == {1: pytest.approx(14.0)}
    (finding,) = traffic.slow_ranks(flows)
    assert finding["culprits"] == [1]
    assert "waited 14.0 s for rank 1, 2000.0 ms a collective" in finding["text"]
    assert traffic.of_job({0: early}) == {} and traffic.slow_ranks({}) == []


@pytest.mark.parametrize(
    ("name", "size"),
    [("Float", 4), ("ComplexDouble", 16), ("BFloat16", 2), ("Half", 2), ("Bool", 1), ("Char", 1)],
)
def test_the_bytes_of_an_element(name, size):
    assert traffic._item_size(name) == size


def test_the_short_form_of_an_id():
    assert screen._short("0d7f5853c354ab") == "0d7f5853c354"
    assert screen._short("of process 12149") == "of process 12149"


def test_nothing_to_show(capsys):
    assert screen.as_text({"jobs": [], "unreadable": []}) == "No job of this user has a group of vccl."
    text = screen.as_text({"jobs": [], "unreadable": [{"pid": 7, "text": "it is cut"}]})
    assert text == "process 7 cannot be read: it is cut"
    for wrong in (["--interval", "0"], ["--once", "--json"], ["--pid", "me"]):
        with pytest.raises(SystemExit) as end:
            cli.main(wrong)
        assert end.value.code == 2
    assert "not allowed with argument --once" in capsys.readouterr().err


def test_the_live_screen_has_the_same_cells(start, tmp_path):
    pytest.importorskip("rich")
    from rich.console import Console

    process = start_job(start, tmp_path, "stands")
    job = wait_for_job(process, lambda job: job["diagnosis"])
    console = Console(width=200, record=True)
    console.print(screen.as_rich({"jobs": [job], "unreadable": []}))
    shown = console.export_text()
    assert all(cell in shown for row in screen.rank_rows(job) for cell in row)
    assert "load_batch (top_job.py:8)" in shown
