"""vrun --netns: hosts with networks of their own. What is left behind when a run ends in whatever way."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import gone, read_when_there, wait_until

from vccl.launch import network
from vccl.launch.links import Link
from vccl.launch.namespaces import Namespace

ROOT = Path(__file__).resolve().parents[2]
SO_NETNS_COOKIE = 71  # sys/socket.h: the number of a namespace, which is not used twice


def reason_to_skip() -> str | None:
    if missing := [program for program in ("ip", "tc", "nsenter") if shutil.which(program) is None]:
        return f"needs {', '.join(missing)}"
    try:
        Namespace().close()
    except OSError as error:
        return f"network namespaces cannot be made here: {error}"
    return None


REASON = reason_to_skip()
needs_namespaces = pytest.mark.skipif(REASON is not None, reason=str(REASON))

SHOW = f"""
import json, os, socket, subprocess, sys, time
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "VCCL_HOSTID", "VCCL_SOCKET_IFNAME",
         "GLOO_SOCKET_IFNAME")
seen = {{name: os.environ.get(name) for name in names}}
seen["name"] = socket.gethostname()
seen["named"] = [socket.gethostbyname(f"host{{host}}") for host in range(2)]
seen["cookie"] = int.from_bytes(socket.socket().getsockopt(socket.SOL_SOCKET, {SO_NETNS_COOKIE}, 8), "little")
def ip(*words): return subprocess.run(words, capture_output=True, text=True, check=True).stdout
seen["links"] = sorted(link["ifname"] for link in json.loads(ip("ip", "-json", "link")))
seen["qdiscs"] = ip("tc", "qdisc", "show", "dev", "eth0")
child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
seen["pids"] = [os.getpid(), os.getppid(), child.pid]
name = "seen" + seen["RANK"]
open(name + ".part", "w").write(json.dumps(seen))
os.rename(name + ".part", name)
"""
WAIT = "time.sleep(3600)\n"
FAIL = """
while not os.path.exists("fail"): time.sleep(0.05)
if seen["RANK"] == "1": sys.exit(7)
"""


def seen_by_ranks(folder: Path, child, ranks: int = 2) -> list[dict]:
    return [json.loads(text) for text in read_when_there([folder / f"seen{n}" for n in range(ranks)], child)]


def cookie_of(path: str) -> int:
    """Returns the number of the namespace that a file stands for, or 0 if it has vanished."""
    read = f"import socket; print(socket.socket().getsockopt(1, {SO_NETNS_COOKIE}, 8)[::-1].hex())"
    ended = subprocess.run(["nsenter", f"--net={path}", sys.executable, "-c", read], capture_output=True)
    return int(ended.stdout, 16) if ended.returncode == 0 else 0


def namespaces_of(pid: int) -> dict[int, int]:
    """Returns the inodes and numbers of the namespaces that a process holds by descriptors.

    That of the machine does not count, which vrun holds while it is in another one.
    """
    machine = os.stat("/proc/self/ns/net").st_ino
    found = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        if re.fullmatch(r"net:\[\d+\]", os.readlink(path)) and (inode := path.stat().st_ino) != machine:
            found[inode] = cookie_of(str(path))
    return found


def exists(inode: int, cookie: int) -> bool:
    """Whether a process, a descriptor or a mount holds a namespace. Inodes are used again."""
    text = f"net:[{inode}]"
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    if any(fields[3] == text and cookie_of(fields[4]) == cookie for fields in mounts):
        return True
    for process in Path("/proc").glob("[0-9]*"):
        try:
            paths = [process / "ns/net", *process.glob("task/*/ns/net"), *process.glob("fd/*")]
            holds = [path for path in paths if os.readlink(path) == text]
        except OSError:  # it has just ended
            continue
        if any(cookie_of(str(path)) == cookie for path in holds):
            return True
    return False


@pytest.fixture
def script(tmp_path: Path):
    def write(text: str = "") -> Path:
        path = tmp_path / "script.py"
        path.write_text(SHOW + text)
        return path

    return write


@pytest.fixture
def netns(start):
    """netns(script, ...) starts vrun with two hosts of one rank each."""

    def begin(*arguments: object, **options):
        line = [sys.executable, "-m", "vccl.launch.vrun", "--hosts", 2, "--cards", 1, "--netns", *arguments]
        return start(line, **options)

    return begin


def check_nothing_is_left(seen: list[dict], namespaces: dict[int, int]) -> None:
    pids = [pid for rank in seen for pid in rank["pids"]]
    wait_until(lambda: all(map(gone, pids)))
    wait_until(lambda: not any(exists(*each) for each in namespaces.items()))


def check_no_folder_is_left(temporary: Path) -> None:
    assert list(temporary.glob("vrun_*")) == list(temporary.glob("torchelastic_*")) == []


@needs_namespaces
def test_each_host_has_a_network_and_names(netns, script, tmp_path):
    child = netns("--link-bandwidth", "200mbit", script())
    output = child.output(600)
    assert child.returncode == 0, output
    assert "cannot be retrieved" not in output  # the warning of torch for an address without a name
    seen = seen_by_ranks(tmp_path, child)
    addresses = [network.address_of_host(host) for host in range(2)]
    for host, rank in enumerate(seen):
        assert rank["VCCL_HOSTID"] == rank["name"] == f"host{host}"
        assert rank["MASTER_ADDR"] == addresses[0] and rank["named"] == addresses
        assert rank["VCCL_SOCKET_IFNAME"] == rank["GLOO_SOCKET_IFNAME"] == "eth0"
        assert rank["links"] == ["eth0", "lo"]
        assert "tbf" in rank["qdiscs"] and "rate 200Mbit" in rank["qdiscs"]
    assert len({rank["cookie"] for rank in seen}) == 2
    assert all(gone(pid) for rank in seen for pid in rank["pids"])  # also what the ranks have left behind


@needs_namespaces
@pytest.mark.parametrize(
    ("text", "number", "status"),
    [(FAIL, None, 7), (WAIT, signal.SIGINT, 130), (WAIT, signal.SIGTERM, 143), (WAIT, signal.SIGKILL, -9)],
    ids=["failure", "ctrl_c", "sigterm", "sigkill"],
)
def test_nothing_is_left(netns, script, tmp_path, text, number, status):
    child = netns(script(text + WAIT), env={"TMPDIR": str(tmp_path)})
    seen = seen_by_ranks(tmp_path, child)
    held = namespaces_of(child.pid)
    assert {rank["cookie"] for rank in seen} < set(held.values()) and len(held) == 3  # one is the switch's
    if number:
        child.send_signal(number)
    else:
        (tmp_path / "fail").touch()
    output = child.output(600)
    assert child.returncode == status, output
    check_nothing_is_left(seen, held)
    if number != signal.SIGKILL:  # nobody was there to remove them
        check_no_folder_is_left(tmp_path)


AGENT = """
import subprocess, time
from vccl.launch.namespaces import end_processes_after_this_one
end_processes_after_this_one()
child = subprocess.Popen(["sleep", "3600"], start_new_session=True, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
time.sleep(3600)
"""


@needs_namespaces
def test_nothing_is_left_of_an_agent_that_is_killed():
    namespace = Namespace()
    with namespace.entered():
        agent = subprocess.Popen([sys.executable, "-c", AGENT], stdout=subprocess.PIPE, text=True)
    namespace.close()
    assert agent.stdout is not None
    child = int(agent.stdout.readline())
    agent.kill()
    agent.communicate(timeout=300)
    wait_until(lambda: gone(child))


@needs_namespaces
def test_nothing_is_left_of_a_failed_start(netns, script, tmp_path):
    child = netns("--preload", "no_such_module", script(), env={"TMPDIR": str(tmp_path)})
    held: dict[int, int] = {}
    while len(held) < 3 and child.poll() is None:
        with contextlib.suppress(FileNotFoundError):  # it has just closed one
            held = namespaces_of(child.pid)
    output = child.output(600)
    assert child.returncode == 1 and "no_such_module" in output, output
    check_nothing_is_left([], held)
    check_no_folder_is_left(tmp_path)


@needs_namespaces
def test_runs_side_by_side(netns, start, script, tmp_path):
    folders = [tmp_path / name for name in ("one", "other")]
    path = script("while not os.path.exists('end'): time.sleep(0.05)\n")
    for folder in folders:
        folder.mkdir()
    children = [netns("--link-bandwidth", "1gbit", path, cwd=folder) for folder in folders]
    cookies = {
        rank["cookie"]
        for folder, child in zip(folders, children, strict=True)
        for rank in seen_by_ranks(folder, child)
    }
    assert len(cookies) == 4
    for folder in folders:
        (folder / "end").touch()
    for child in children:
        output = child.output(600)
        assert child.returncode == 0, output


MEASURE = """
import os, time, torch, torch.distributed as dist
device = torch.device(os.environ["DEVICE"])
dist.init_process_group(os.environ["BACKEND"])
tensor = torch.ones(1 << 18, device=device)
dist.all_reduce(tensor[:1].clone())
begin = time.monotonic()
dist.all_reduce(tensor)
assert tensor.cpu().eq(2).all()
print(f"seconds {time.monotonic() - begin}")
dist.destroy_process_group()
"""


@needs_namespaces
@pytest.mark.parametrize(("backend", "device"), [("vccl", "vdev"), ("gloo", "cpu")])
def test_a_link_has_its_bandwidth(netns, tmp_path, backend, device):
    """A MiB has to leave each of two hosts, so this has a least time, however fast the machine is."""
    path = tmp_path / "measure.py"
    path.write_text(MEASURE)
    child = netns("--prefix", "--link-bandwidth", "20mbit", path, env={"BACKEND": backend, "DEVICE": device})
    output = child.output(600)
    assert child.returncode == 0, output
    seconds = re.findall(r"^\[host(\d) rank \1\] seconds ([\d.]+)$", output, re.MULTILINE)
    assert len(seconds) == 2 and all(float(each) > 0.35 for _, each in seconds), output


@needs_namespaces
@pytest.mark.parametrize(
    "options", [["--link-latency", "20ms"], ["--link-loss", "0.5%"]], ids=["latency", "loss"]
)
def test_what_needs_the_emulator_of_the_kernel(netns, tmp_path, options):
    path = tmp_path / "script.py"
    path.write_text(SHOW)
    child = netns(*options, "--link-bandwidth", "1gbit", path)
    output = child.output(600)
    try:
        network.check_kernel(Link(latency=1))
    except network.NetworkError:
        assert child.returncode == 1, output
        assert (
            f"vrun: {options[0]} needs the kernel's network emulator, netem (CONFIG_NET_SCH_NETEM)" in output
        )
        assert os.uname().release in output and len(output.splitlines()) == 1
        return
    assert child.returncode == 0, output
    for rank in seen_by_ranks(tmp_path, child):
        assert "netem" in rank["qdiscs"] and "rate 1Gbit" in rank["qdiscs"]


@needs_namespaces
def test_a_model_is_trained_on_four_ranks_of_two_hosts(vrun):
    output = vrun(
        *("--hosts", 2, "--cards", 2, "--netns", ROOT / "examples" / "train_gpt.py"),
        *("--steps", 9, "--batch-size", 2, "--report-every", 3, "--sample", 1),
    )
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d{4})", output)]
    assert len(losses) == 3 and losses[0] > losses[1] > losses[2], output


REDUCE = """
import torch.distributed as dist
dist.init_process_group("vccl")
while True:
    dist.all_reduce(torch.ones(1000, device="vdev"))
    torch.accelerator.synchronize()
    if dist.get_rank() == 1 and not os.path.exists("reduced"): open("reduced", "w").close()
"""


@pytest.mark.daily
@needs_namespaces
def test_ranks_name_the_host_that_is_cut_off(netns, script, tmp_path):
    child = netns("--prefix", script("import torch\n" + REDUCE))
    seen = seen_by_ranks(tmp_path, child)
    wait_until(lambda: (tmp_path / "reduced").exists() or child.poll() is not None)
    target = f"--target={seen[1]['pids'][0]}"
    subprocess.run(["nsenter", "--net", target, "ip", "link", "set", "eth0", "down"], check=True)
    output = child.output(600)
    assert child.returncode == 1, output
    lines = [line for line in output.splitlines() if line.startswith("[host0 rank 0]")]
    assert any("DistBackendError" in line and "rank 1" in line and "host1" in line for line in lines), output


def test_in_a_user_namespace(start, script, tmp_path):
    """As who is not root of the machine, where the system permits user namespaces."""
    alone = ["unshare", "--user", "--map-root-user", "--net"]
    if subprocess.run([*alone, "true"]).returncode != 0:
        pytest.skip("user namespaces cannot be made here")
    vrun = [sys.executable, "-m", "vccl.launch.vrun", "--hosts", 2, "--cards", 1, "--netns"]
    child = start([*alone, *vrun, "--link-bandwidth", "1gbit", script()])
    output = child.output(600)
    assert child.returncode == 0, output
    assert len({rank["cookie"] for rank in seen_by_ranks(tmp_path, child)}) == 2


def test_who_may_not_make_namespaces_is_told(start, tmp_path):
    without = ["setpriv", "--bounding-set", "-sys_admin"] if os.geteuid() == 0 else []
    if without and subprocess.run([*without, "true"]).returncode != 0:
        pytest.skip("setpriv cannot take away the right")
    script = tmp_path / "script.py"
    script.write_text("")
    child = start([*without, sys.executable, "-m", "vccl.launch.vrun", "--hosts", 2, "--netns", script])
    output = child.output(600)
    assert child.returncode == 1, output
    assert "vrun: --netns makes network namespaces, which needs root" in output and "Traceback" not in output
