"""What the tests of launchers share: a script that they start, and hosts for it."""

import os
import re
import shlex
import socket
import time
from pathlib import Path

from vccl.launch.namespaces import Namespace

ROOT = Path(__file__).resolve().parents[2]

# With DIES=n, rank n kills itself in the first attempt. With STAYS=n, n ranks go on until one fails.
TRAIN = """
import os, signal, sys, time, torch, torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("vccl")

def reduce():
    x = torch.full((1000,), rank + 1.0, device="vdev")
    dist.all_reduce(x)
    assert x.eq(size * (size + 1) / 2).all()

reduce()
open(f"begun{rank}", "w").close()
if attempt == 0 and os.environ.get("DIES") == str(rank):
    os.kill(os.getpid(), signal.SIGKILL)
while os.environ.get("STAYS") == str(size):
    reduce()
    time.sleep(0.02)
reduce()
seen = [os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("OMP_NUM_THREADS"), *sys.argv[1:]]
os.write(1, f"rank {rank} of {size} has trained in attempt {attempt} with {seen}\\n".encode())
dist.destroy_process_group()
"""
TRAINED = re.compile(r"rank (\d+) of (\d+) has trained in attempt (\d+) with (\[.*\])")


def trained(output: str) -> list[tuple[int, int]]:
    """Returns rank and world size of each rank that has come to the end."""
    return sorted((int(rank), int(size)) for rank, size, _, _ in TRAINED.findall(output))


def attempts(output: str) -> int:
    """Returns the number of the last attempt. An agent does not count those for ranks of other hosts."""
    return max(int(attempt) for _, _, attempt, _ in TRAINED.findall(output))


def write_script(folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text(TRAIN)
    return path


def commands_of_page(heading: str) -> list[list[str]]:
    """Returns the command lines of torchrun in a section of docs/launch.md."""
    page = (ROOT / "docs" / "launch.md").read_text()
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [shlex.split(line) for line in re.findall(r"^torchrun .*$", section, re.MULTILINE)]


def wait_for_port(port: int, place: Namespace | None, child) -> None:
    """Waits until somebody listens on a port of this machine, or of a host's network."""
    until = time.monotonic() + 300
    while True:
        assert time.monotonic() < until and child.poll() is None, child.output(1)
        with socket.socket() if place is None else socket_in(place) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)


def socket_in(place: Namespace) -> socket.socket:
    with place.entered():
        return socket.socket()


def environment_of(host: int) -> dict[str, str | None]:
    """Returns the variables of one of two hosts that share a machine."""
    inherited = {name: None for name in os.environ if name.startswith(("PET_", "SLURM_", "TORCHELASTIC_"))}
    return {**inherited, "VCCL_HOSTID": f"host{host}", "VDEV_MACHINE_RANKS": "4"}
