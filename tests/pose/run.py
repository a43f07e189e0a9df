"""Runs tests of cards, ranks and the sanitizer on cards that pose as CUDA: `make test-cuda`.

The tests are written for cards of the type vdev. This program writes a copy of `tests` in which that word
is "cuda", and runs pytest on the copy. A copy needs no hook of the import: ranks, other processes and pytest
read it as they read any test, and what a traceback shows is what ran. The lines keep their numbers.

The backend stays "vccl". It exists in the pose too, and also takes the CPU tensors that many tests have,
which "nccl" refuses. `test_nccl.py` beside this file has the tests of "nccl".

    python tests/pose/run.py [--short] [what pytest takes; files relative to the top of the repository]
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "cuda"
TRANSLATED = ("device", "distributed", "sanitizer")
# Tests find these by their place above `tests`. pytest takes its options from the second.
BESIDE = ("docs", "pyproject.toml")
# The word, and not the module vccl.vdev or the names of the cards' memory and of the table of its users.
DEVICE = re.compile(r"(?<!vccl\.)(?<!memfd:)\b(?P<is>is_)?vdev\b(?!-usage-)")
GRAPH = re.compile(r"\bVDEVGraph\b")
# What the profiler calls the device type.
PROFILED = re.compile(r"\b(?P<kind>ProfilerActivity|DeviceType)\.PrivateUse1\b")
# What `.ci/run` has time for: something of every room.
SHORT = (
    "tests/device/operators/test_copy.py",
    "tests/device/cards/test_device.py",
    "tests/device/training/test_nn.py",
    "tests/device/streams/test_streams.py",
    "tests/device/training/test_training.py",
    "tests/distributed/parallelism/test_ddp.py",
    "tests/distributed/collectives/test_collectives.py",
    "tests/sanitizer/test_programs.py",
    "tests/pose/test_nccl.py",
    "tests/pose/test_nccl_groups.py",
)


def translate(source: str) -> str:
    """Returns the text of a test for cards of the type vdev as it reads for cards that pose as CUDA."""
    source = DEVICE.sub(lambda found: f"{found['is'] or ''}cuda", source)
    source = GRAPH.sub("CUDAGraph", source)
    return PROFILED.sub(lambda found: f"{found['kind']}.CUDA", source)


def copy_tests() -> None:
    """Writes the translated tests to COPY, in the place of an older copy."""
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(ROOT / "tests", COPY / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in BESIDE:
        (COPY / name).symlink_to(ROOT / name)
    for path in [path for folder in TRANSLATED for path in (COPY / "tests" / folder).rglob("*.py")]:
        path.write_text(translate(path.read_text()))


def main(arguments: list[str]) -> int:
    """Returns pytest's exit status."""
    files = [f"tests/{folder}" for folder in (*TRANSLATED, "pose")]
    if "--short" in arguments:
        arguments = [argument for argument in arguments if argument != "--short"]
        files = list(SHORT)
    if any(argument.startswith("tests/") for argument in arguments):
        files = []
    copy_tests()
    folders = [str(COPY / "tests" / folder) for folder in ("", "distributed", "pose")]
    paths = [*folders, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "VDEV_POSE": "cuda", "PYTHONPATH": os.pathsep.join(paths)}
    ranks = ["--ranks-device", "cuda", "--ranks-backend", "vccl"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "not_in_pose",
        "--dist",
        "loadfile",
        "--max-worker-restart=0",  # as in the Makefile
        *ranks,
        *arguments,
        *files,
    ]
    return subprocess.run(command, cwd=COPY, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
