"""Fixtures for the tests of one process and its cards."""

import gc
import os
import subprocess
import sys
import threading

import pytest

# Before the first card is made: enough for every test, little enough that reaching the end is cheap.
os.environ.setdefault("VDEV_MEMORY", "2G")
os.environ.setdefault("VDEV_DEVICE_COUNT", "8")

import torch

import vccl  # noqa: F401


@pytest.fixture(autouse=True)
def first_card():
    """Every test starts and ends on card 0 with nothing queued anywhere."""
    torch.vdev.set_device(0)
    torch.vdev.clear_errors()  # of a test that has failed
    yield
    torch.vdev.set_device(0)
    torch.vdev.set_stream(torch.vdev.default_stream())
    for index in range(torch.vdev.device_count()):
        torch.vdev.synchronize(index)


@pytest.fixture(autouse=True)
def collect_between_tests():
    """Python's collector runs only between tests. It would free tensors of an earlier test while this one
    compares figures of memory."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def fresh_memory():
    """Tests of which block is used again have a pool in which nothing is free that others have left."""
    with torch.vdev.use_mem_pool(torch.vdev.MemPool()):
        yield


@pytest.fixture
def gate():
    """Closes streams: ``gate.close(stream)`` enqueues a task on it that waits until ``gate.open()``."""

    class Gate:
        def __init__(self) -> None:
            self.opened = threading.Event()
            self.was_late = False

        def close(self, stream: torch.Stream) -> None:
            with torch.vdev.stream(stream):
                torch.vdev._launch_host_func(self.wait)

        def wait(self) -> None:
            # Bounded, so that a test that waits for the stream before it opens the gate still ends.
            self.was_late |= not self.opened.wait(60)

        def open(self) -> None:
            self.opened.set()

    gate = Gate()
    yield gate
    gate.open()
    assert not gate.was_late, "the test has waited for a stream behind its closed gate"


@pytest.fixture
def run_python():
    """Runs code in a fresh interpreter and returns the finished process, which must succeed unless ``check``
    is false."""

    def run(code: str, check: bool = True, timeout: float = 600, **environment: str):
        env = {**os.environ, **environment}
        env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        result = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=timeout
        )
        if check:
            assert result.returncode == 0, result.stdout + result.stderr
        return result

    return run
