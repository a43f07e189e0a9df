"""Runs files of probes in processes whose cards pose as CUDA. The process of pytest itself does not pose."""

import json
import os
import subprocess
import sys

import pytest
from probes import FOLDER, MARK

ENVIRONMENT = {
    "VDEV_POSE": "cuda",
    "VDEV_DEVICE_COUNT": "4",
    "VDEV_MEMORY": "2G",
    "VDEV_PROFILE": "h100-80g",
    "CUDA_VISIBLE_DEVICES": "2,0,1",
    "NCCL_DEBUG": "WARN",
    # Probes look at all processes of a card, and pytest's own process may use cards of the same size.
    "VDEV_HOSTID": f"posed-{os.getpid()}",
}


@pytest.fixture
def posed_environment():
    """The variables of a process whose cards pose as CUDA, for the fixture run."""
    return dict(ENVIRONMENT)


@pytest.fixture(scope="session")
def posed():
    """posed(file, name) fails the test if the probe of that name did. A file's probes share one process."""
    results: dict[str, dict[str, str]] = {}

    def run(file: str) -> dict[str, str]:
        process = subprocess.run(
            [sys.executable, str(FOLDER / "probes.py"), file],
            env={**os.environ, **ENVIRONMENT},
            capture_output=True,
            text=True,
            timeout=900,
        )
        printed = [line for line in process.stdout.splitlines() if line.startswith(MARK)]
        assert process.returncode == 0 and printed, process.stdout + process.stderr
        return json.loads(printed[-1].removeprefix(MARK))

    def check(file: str, name: str) -> None:
        if file not in results:
            results[file] = run(file)
        if results[file][name]:
            pytest.fail(f"{name} of {file}:\n{results[file][name]}", pytrace=False)

    return check
