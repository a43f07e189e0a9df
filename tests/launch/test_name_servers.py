"""Ranks start without a name server: nothing that starts them asks one for the machine or for 127.0.0.1."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vccl import _C

HERE = Path(__file__).resolve().parent
SILENT = [sys.executable, str(HERE / "silent_name_server.py")]
VRUN = [sys.executable, "-m", "vccl.launch.vrun"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
# The name of a machine that nothing knows, and one that /etc/hosts has. gloo looks for the machine's name,
# and torchrun lets ranks meet there.
NAMELESS, NAMED = "nameless", "named"
JOB = """
import os, torch, torch.distributed as dist
dist.init_process_group(os.environ["BACKEND"])
x = torch.ones(4)
dist.all_reduce(x)
os.write(1, f"sum {x[0].item()}\\n".encode())
dist.destroy_process_group()
"""
TEST = """
import pytest, torch, torch.distributed as dist
@pytest.mark.ranks(2)
def test_sum(ranks):
    x = torch.ones(4, device=ranks.device)
    dist.all_reduce(x)
    assert x[0] == ranks.size
"""
STORE = """
import torch.distributed as dist
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
dist.TCPStore("127.0.0.1", server.port).set("a", "b")
"""


def reason_to_skip() -> str | None:
    if os.geteuid() != 0:
        return "namespaces need root"
    if shutil.which("ip") is None:
        return "needs the program ip (iproute2)"
    done = subprocess.run([*SILENT, NAMELESS, "true"], capture_output=True, text=True, timeout=300)
    return f"namespaces cannot be made here: {done.stderr.strip()}" if done.returncode else None


REASON = reason_to_skip()
needs_namespaces = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.fixture
def asked(run: Callable[..., str], tmp_path: Path) -> Callable[..., tuple[str, list[str]]]:
    """asked(hostname, *command) returns the output of the command, and the names that it has asked for."""

    def asked(hostname: str, *command: object, **options) -> tuple[str, list[str]]:
        output = run([*SILENT, hostname, *map(str, command)], cwd=tmp_path, **options)
        *text, names = output.splitlines()
        return "\n".join(text), json.loads(names)

    return asked


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


def test_the_calls_of_torch_are_found():
    assert _C._write_addresses_as_numbers()


@needs_namespaces
def test_torch_alone_asks_for_the_name_of_this_machine(asked):
    env = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    _, names = asked(NAMED, sys.executable, "-c", STORE, env=env)
    assert set(names) == {"1.0.0.127.in-addr.arpa"}


@pytest.mark.daily
@needs_namespaces
@pytest.mark.parametrize(
    ("hostname", "launcher", "backend"),
    [
        (NAMELESS, [*VRUN, "--nproc-per-node", "2"], "vccl"),
        (NAMED, [*VRUN, "--nproc-per-node", "2", "--no-preload"], "gloo"),
        (NAMELESS, [*VRUN, "--nproc-per-node", "1", "--hosts", "2"], "vccl"),
        (NAMED, [*TORCHRUN, "--nproc-per-node", "2"], "vccl"),
        (NAMED, [*TORCHRUN, "--standalone", "--nproc-per-node", "2"], "gloo"),
    ],
)
def test_a_job_starts_without_a_question(asked, job, hostname, launcher, backend):
    output, names = asked(hostname, *launcher, job, env={"BACKEND": backend})
    assert output.count("sum 2.0") == 2
    assert names == []


@needs_namespaces
def test_a_job_that_fails_ends_without_a_question(asked, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("raise ValueError('of the script')")
    output, names = asked(NAMELESS, *VRUN, "--nproc-per-node", 2, script, status=1)
    assert "ValueError: of the script" in output
    assert names == []


@needs_namespaces
def test_the_plugin_and_an_example_start_without_a_question(asked, tmp_path):
    (tmp_path / "test_sum.py").write_text(TEST)
    output, names = asked(NAMELESS, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_sum.py")
    assert "1 passed" in output
    assert names == []
    example = HERE.parents[1] / "examples" / "all_reduce.py"
    assert asked(NAMELESS, *VRUN, "--cards", 2, example)[1] == []
