"""vrun: what each rank sees, and what failures and signals lead to. The scripts need no torch: quick."""

import ctypes
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from processes import gone, read_when_there, wait_until

from vccl.launch import addresses, card_use
from vccl.launch import vrun as command

VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "OMP_NUM_THREADS",
    "VCCL_HOSTID",
    "VDEV_DEVICE_COUNT",
    "VDEV_MACHINE_RANKS",
)
SHOW = f"""
import ctypes, json, os, sys
# One write a line: the ranks share the pipe.
seen = {{name: os.environ.get(name) for name in {VARIABLES!r}}} | {{"argv": sys.argv[1:]}}
seen["address"] = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_Py_NoneStruct"))
os.write(1, (json.dumps(seen) + "\\n").encode())
"""
CLEAN = {name: None for name in ("OMP_NUM_THREADS", "VCCL_HOSTID", "VDEV_DEVICE_COUNT", "VDEV_MACHINE_RANKS")}


@pytest.fixture
def show(tmp_path: Path) -> Path:
    """A script that prints a rank's environment and arguments as a line of JSON."""
    path = tmp_path / "show.py"
    path.write_text(SHOW)
    return path


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """An empty folder, for TMPDIR."""
    path = tmp_path / "temporary"
    path.mkdir()
    return path


def ranks(output: str) -> list[dict]:
    seen = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return sorted(seen, key=lambda rank: int(rank["RANK"]))


def test_one_host(vrun, show):
    seen = ranks(vrun("--cards", 2, show, "--cards", "3", env=CLEAN))
    threads = str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert [rank["LOCAL_RANK"] for rank in seen] == ["0", "1"]
    for rank in seen:
        assert rank["WORLD_SIZE"] == rank["LOCAL_WORLD_SIZE"] == "2"
        assert rank["OMP_NUM_THREADS"] == threads
        assert rank["VCCL_HOSTID"] is None
        assert rank["VDEV_DEVICE_COUNT"] is None
        assert rank["VDEV_MACHINE_RANKS"] is None
        assert rank["argv"] == ["--cards", "3"]  # what follows the script is the script's


def test_more_ranks_than_a_machine_has_cards(vrun, show):
    seen = ranks(vrun("--cards", 9, show, env=CLEAN))
    assert {rank["VDEV_DEVICE_COUNT"] for rank in seen} == {"9"}
    seen = ranks(vrun("--cards", 9, show, env={**CLEAN, "VDEV_DEVICE_COUNT": "12"}))
    assert {rank["VDEV_DEVICE_COUNT"] for rank in seen} == {"12"}


@pytest.mark.parametrize("hosts", [1, 2])
def test_ranks_lie_at_the_same_addresses(vrun, show, hosts):
    libc = ctypes.CDLL(None)
    before = libc.personality(ctypes.c_ulong(addresses.QUERY))
    with addresses.alike():
        permitted = bool(libc.personality(ctypes.c_ulong(addresses.QUERY)) & addresses.ADDR_NO_RANDOMIZE)
    assert libc.personality(ctypes.c_ulong(addresses.QUERY)) == before
    seen = ranks(vrun("--hosts", hosts, "--cards", 4 // hosts, show))
    if permitted:
        assert len({rank["address"] for rank in seen}) == 1


def test_pretended_hosts(vrun, show):
    seen = ranks(vrun("--hosts", 2, "--cards", 2, show, env={**CLEAN, "OMP_NUM_THREADS": "5"}))
    assert [rank["RANK"] for rank in seen] == ["0", "1", "2", "3"]
    assert [rank["LOCAL_RANK"] for rank in seen] == ["0", "1", "0", "1"]
    assert [rank["VCCL_HOSTID"] for rank in seen] == ["host0", "host0", "host1", "host1"]
    for rank in seen:
        assert rank["WORLD_SIZE"] == "4"
        assert rank["LOCAL_WORLD_SIZE"] == "2"
        assert rank["OMP_NUM_THREADS"] == "5"  # set before: kept
        assert rank["VDEV_MACHINE_RANKS"] == "4"  # both hosts lie in this machine's memory


def test_torchrun_options_pass_through(vrun, show, tmp_path):
    vrun("--nproc-per-node", 2, "--log-dir", tmp_path / "logs", "--redirects", 1, "--role", "r", show)
    printed = "".join(path.read_text() for path in (tmp_path / "logs").rglob("stdout.log"))
    assert [rank["WORLD_SIZE"] for rank in ranks(printed)] == ["2", "2"]


@pytest.mark.parametrize("hosts", [1, 2])
def test_exit_status_of_the_rank_that_failed(vrun, tmp_path, temporary, hosts):
    script = tmp_path / "fail.py"
    script.write_text('import os, sys, time\nif os.environ["RANK"] == "1": sys.exit(7)\ntime.sleep(3600)\n')
    vrun("--hosts", hosts, "--cards", 2 // hosts, script, status=7, env={"TMPDIR": str(temporary)})
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_every_rank(start, tmp_path, temporary, hosts, number):
    script = tmp_path / "sleep.py"
    script.write_text(
        'import os, time\nopen(f"pid{os.environ[\'RANK\']}.part", "w").write(str(os.getpid()))\n'
        "os.rename(f\"pid{os.environ['RANK']}.part\", f\"pid{os.environ['RANK']}\")\ntime.sleep(3600)\n"
    )
    cards = 2 // hosts
    line = [sys.executable, "-m", "vccl.launch.vrun", "--hosts", hosts, "--cards", cards, script]
    child = start(line, env={"TMPDIR": str(temporary)})
    pids = read_when_there([tmp_path / f"pid{rank}" for rank in range(2)], child)
    child.send_signal(number)
    output = child.output(300)
    assert child.returncode == 128 + number, output
    assert all(map(gone, pids))
    assert list(temporary.iterdir()) == []


def test_what_was_logged_is_kept(vrun, show, temporary):
    vrun("--cards", 2, "--redirects", 1, show, env={"TMPDIR": str(temporary)})
    assert len(list(temporary.rglob("stdout.log"))) == 2


USE = """
import os, signal, sys
import torch
if len(sys.argv) > 1 and os.environ["RANK"] == "1":
    torch.ones(1, device=sys.argv[1])
    os._exit(0)  # as a rank that ends without Python's exit
"""
NOTE = "vrun: no rank used a card"


@pytest.mark.parametrize("options", [["--cards", 2], ["--cards", 1, "--hosts", 2]], ids=["1_host", "2_hosts"])
def test_a_job_that_used_no_card_is_told_so(vrun, tmp_path, temporary, options):
    script = tmp_path / "use.py"
    script.write_text(USE)
    env = {"TMPDIR": str(temporary), card_use.VARIABLE: None}
    told = vrun(*options, script, "cpu", env=env)
    assert told.count(NOTE) == 1 and 'device="vdev"' in told and "--as-cuda" in told
    assert NOTE not in vrun(*options, script, "vdev", env=env)
    assert list(temporary.iterdir()) == []


def test_a_job_in_pose_that_used_no_card_is_told_the_name_of_the_pose(vrun, tmp_path):
    script = tmp_path / "use.py"
    script.write_text(USE)
    told = vrun("--as-cuda", "--cards", 2, script, "cpu", env={card_use.VARIABLE: None})
    assert told.count(NOTE) == 1 and 'device="cuda"' in told and "--as-cuda" not in told


def test_ranks_can_pose_as_cuda(vrun, tmp_path):
    script = tmp_path / "nccl.py"
    script.write_text(
        "import os, sys, torch, torch.distributed as dist\n"
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
        "dist.init_process_group('nccl')\n"
        "numbers = torch.ones(2, device='cuda')\n"
        "dist.all_reduce(numbers)\n"
        "sys.stdout.write(f'sum {numbers.tolist()}\\n')\n"
        "dist.destroy_process_group()\n"
    )
    assert vrun("--as-cuda", "--cards", 2, script).count("sum [2.0, 2.0]\n") == 2
    # The agent itself has cards in pose, or as many "GPUs" as there are cards.
    assert vrun("--as-cuda", "--cards", 1, script, env={"VDEV_POSE": "cuda"}).count("sum [1.0, 1.0]\n") == 1
    gpus = ("--as-cuda", "--nproc-per-node", "gpu", script)
    assert vrun(*gpus, env={"VDEV_DEVICE_COUNT": "2"}).count("sum [2.0, 2.0]\n") == 2
    assert vrun("--as-cuda", "--hosts", 2, "--cards", 1, script).count("sum [2.0, 2.0]\n") == 2


def test_only_who_asks_for_cards_is_told(vrun, show, tmp_path):
    env = {card_use.VARIABLE: None}
    assert NOTE in vrun("--cards", 1, show, env=env)
    assert NOTE not in vrun("--nproc-per-node", 1, show, env=env)
    assert NOTE not in vrun("--cards", 1, show, env={card_use.VARIABLE: str(tmp_path / "used")})
    failing = tmp_path / "fail.py"
    failing.write_text("raise SystemExit(3)")
    assert NOTE not in vrun("--cards", 1, failing, env=env, status=3)


def test_help_is_short_and_ours(run):
    text = run([sys.executable, "-m", "vccl.launch.vrun", "--help"])
    assert "--cards" in text and "--hosts" in text and "--port" not in text
    assert len(text.splitlines()) < 50


def test_defaults_and_contradictions(capsys):
    args = command.parse(["script.py", "-x"])
    command.count_ranks(args)
    assert args.standalone and args.cards == command.default_cards(1) >= 1
    assert args.training_script_args == ["-x"]
    args = command.parse(["--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1", "script.py"])
    assert not args.standalone and args.nnodes == "2"

    for wrong, word in (
        (["--cards", "2", "--nproc-per-node", "3", "s.py"], "contradict"),
        (["--hosts", "2", "--nnodes", "2", "s.py"], "--nnodes"),
        (["--hosts", "2", "--standalone", "s.py"], "--standalone"),
        (["--cards", "0", "s.py"], "positive"),
    ):
        with pytest.raises(SystemExit):
            command.parse(wrong)
        assert word in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (["--cards", 200, "SCRIPT"], "--cards 200: a machine has 64 cards at most"),
        (["--cards", 2, "nofile.py"], "there is no file nofile.py"),
        (["--hosts", 2, "--cards", 2, "nofile.py"], "there is no file nofile.py"),
        (["--cards", 2, "-m", "no_such_module.part"], "there is no module named no_such_module.part"),
        (["--cards", 2, "--no-python", "no-such-program"], "there is no program no-such-program"),
    ],
)
def test_what_no_rank_could_run_is_refused_in_one_line(vrun, show, line, text):
    output = vrun(*(show if word == "SCRIPT" else word for word in line), status=2)
    assert output.startswith(f"vrun: {text}") and len(output.splitlines()) == 1


def test_more_ranks_than_cards_run_without_cards(tmp_path, monkeypatch):
    monkeypatch.delenv("VDEV_DEVICE_COUNT", raising=False)
    monkeypatch.setattr(command, "run_agent", lambda args, template: 0)
    command.run([], command.parse(["--nproc-per-node", "200", "s.py"]), None)
    assert os.environ["VDEV_DEVICE_COUNT"] == "64"


FAILS = """
import os, sys, time
if os.environ["RANK"] == "1": sys.exit(7)
time.sleep(3600)
"""


def test_the_first_failure_comes_last_and_alone(vrun, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    output = vrun("--nproc-per-node", 3, script, status=7)
    last = output.splitlines()[-1]
    assert re.match(r"vrun: rank 1 \(pid [0-9]+\) failed first: exit status 7($|; )", last)
    assert "Root Cause" not in output


QUIT = """
import os, signal, time
def here():
    open(f"in{os.environ['RANK']}", "w").close()
    while not os.path.exists("go_on"): time.sleep(0.01)
here()
"""


@pytest.mark.parametrize("options", [[], ["--hosts", 2]], ids=["one", "hosts"])
def test_sigquit_shows_the_stacks_of_ranks_that_go_on(start, tmp_path, options):
    script = tmp_path / "quit.py"
    script.write_text(QUIT)
    ranks = 1 if options else 2
    line = [sys.executable, "-m", "vccl.launch.vrun", *options, "--nproc-per-node", ranks, script]
    child = start(line)
    wait_until(lambda: all((tmp_path / f"in{rank}").exists() for rank in range(2)))
    os.kill(child.pid, signal.SIGQUIT)
    wait_until(lambda: child.printed().count("in here") == 2)
    (tmp_path / "go_on").touch()
    child.output(300)
    assert child.returncode == 0


# The file is there before open() has returned, so Ctrl-C waits until the rank is in the line that is named.
INTERRUPTED = """
import os, signal, time
def here():
    open(f"in{os.environ['RANK']}", "w").close()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT}); time.sleep(3600)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
here()
"""


def test_an_interrupted_rank_prints_one_line(start, tmp_path):
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    # Ranks have time for their line, however busy the machine is.
    options = ["--shutdown-timeout", 300, "--nproc-per-node", 2]
    child = start([sys.executable, "-m", "vccl.launch.vrun", *options, script])
    wait_until(lambda: all((tmp_path / f"in{rank}").exists() for rank in range(2)))
    os.kill(child.pid, signal.SIGINT)
    output = child.output(300)
    assert child.returncode == 130
    for rank in range(2):
        assert output.count(f"rank {rank}: KeyboardInterrupt in here ({script}, line 5)") == 1
    assert "Traceback" not in output


def test_the_version(run):
    text = run([sys.executable, "-m", "vccl.launch.vrun", "--version"])
    assert re.fullmatch(r"vrun of vccl [0-9.]+, torch 2\.13.*\n", text)
