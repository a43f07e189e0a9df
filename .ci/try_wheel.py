"""Tries the wheel in dist/ with several versions of torch, where there is no compiler.

Each version gets an environment of its own, in build/wheels, which is removed afterwards. PATH has nothing
but that environment's commands. TORCH is ``2.14.1``, ``2.13.0+cpu``, or the path of torch's wheel.

    python .ci/try_wheel.py [--python PYTHON] TORCH...
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
BUILD = ROOT / "build" / "wheels"

PLUGIN = """
import pytest, torch, torch.distributed as dist

@pytest.mark.ranks(4)
def test_sum(ranks):
    x = torch.full((3,), float(ranks.rank), device=ranks.device)
    dist.all_reduce(x)
    assert x.eq(6).all()
"""
DDP = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

card = int(os.environ["LOCAL_RANK"])
device = torch.accelerator.current_accelerator().type
torch.accelerator.set_device_index(card)
dist.init_process_group("nccl" if device == "cuda" else "vccl")
torch.manual_seed(0)
net = DistributedDataParallel(torch.nn.Linear(8, 8).to(device), device_ids=[card])
net(torch.full((4, 8), float(card), device=device)).sum().backward()
gradient = net.module.weight.grad
assert gradient.device.type == device and gradient.eq(2).all(), gradient
dist.destroy_process_group()
"""
PROFILER = """
import torch
from torch.profiler import ProfilerActivity, profile

with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiled:
    torch.ones(64, 64, device="vdev") @ torch.ones(64, 64, device="vdev")
    torch.accelerator.synchronize()
names = {event.key for event in profiled.key_averages()}
assert "aten::mm" in names, names
"""
CUDA_VERSION = "import torch; print(torch.version.cuda)"


class Trial:
    """An environment with one torch and the wheel, and the commands that have to succeed there."""

    def __init__(self, folder: Path, python: str, torch: str) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
        # A constraint of the machine may forbid a version that is installed here only.
        environment = os.environ | {"PIP_CONSTRAINT": "", "PIP_CONFIG_FILE": os.devnull}
        pip = [self.bin / "python", "-m", "pip", "install", "--quiet"]
        equals = "" if torch.endswith(".whl") else "torch==" if "+" in torch else "torch==="
        subprocess.run([*pip, f"{equals}{torch}", "numpy"], check=True, env=environment)
        subprocess.run([*pip, "pytest", *DIST.glob("*.whl")], check=True, env=environment)

    def succeeds(self, *command: object) -> bool:
        words = [str(word) for word in command]
        words[0] = str(self.bin / words[0])
        environment = {"PATH": str(self.bin), "HOME": str(self.folder)}
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        ended = subprocess.run(words, env=environment, cwd=self.folder, check=False, **output)
        if ended.returncode != 0:
            print(f"{' '.join(words)}:\n{ended.stdout}", flush=True)
        return ended.returncode == 0

    def commands(self) -> dict[str, tuple[object, ...]]:
        """Returns what is tried, by its name."""
        for name, text in {"test_sum": PLUGIN, "ddp": DDP, "profiler": PROFILER}.items():
            (self.folder / f"{name}.py").write_text(text)
        bench = ("vrun", "--cards", 2, "-m", "vccl.bench", "all_reduce", "--backend", "vccl,gloo")
        commands: dict[str, tuple[object, ...]] = {
            "import": ("python", "-c", "import torch; assert torch.ones(2, device='vdev').sum() == 2"),
            "DDP": ("vrun", "--cards", 2, "ddp.py"),
            "plugin": ("python", "-m", "pytest", "-q", "test_sum.py"),
            "bench": (*bench, "--min", "4K", "--max", "64K"),
            "profiler": ("python", "profiler.py"),
        }
        cuda = subprocess.check_output([self.bin / "python", "-c", CUDA_VERSION], text=True)
        if cuda.strip() == "None":
            commands["pose"] = ("vrun", "--as-cuda", "--cards", 2, "ddp.py")
        return commands


def try_with(torch: str, python: str) -> bool:
    """Returns whether everything has succeeded with this torch, and prints what has not."""
    folder = Path(tempfile.mkdtemp(dir=BUILD))
    try:
        trial = Trial(folder, python, torch)
        results = {name: trial.succeeds(*command) for name, command in trial.commands().items()}
    except subprocess.CalledProcessError as error:
        print(f"torch {torch}: FAILED: {error}", flush=True)
        return False
    finally:
        shutil.rmtree(folder)
    words = [f"{name} {'passed' if passed else 'FAILED'}" for name, passed in results.items()]
    print(f"torch {torch}: {', '.join(words)}", flush=True)
    return all(results.values())


def main() -> int:
    """Returns 0 if everything has succeeded with every torch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("torch", nargs="+")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the environments")
    arguments = parser.parse_args()
    if len(list(DIST.glob("*.whl"))) != 1:
        parser.error(f"{DIST} has to have one wheel: `make wheels` makes it")
    BUILD.mkdir(parents=True, exist_ok=True)
    results = [try_with(torch, arguments.python) for torch in arguments.torch]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
