"""What the tests of every room share: bounded runs of other processes."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Tests that fill a card share it with nobody else on the machine. Every worker of xdist has its own cards.
os.environ["VDEV_HOSTID"] = f"tests-{os.getpid()}"

# A shell starts background jobs with these ignored, which processes inherit. Tests send them to children.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) == signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "asynchronous: needs operators that are tasks, so it is skipped with VDEV_LAUNCH=blocking"
    )
    config.addinivalue_line("markers", "daily: takes long, so `make test SHORT=1` leaves it out")
    config.addinivalue_line(
        "markers",
        'torch(versions, reason): is skipped with other versions of torch than these, as in ">=2.14"',
    )


# Files that take a minute and more on one worker, the longest first. A worker that takes one of these last
# keeps the others waiting. Only the time of a whole run depends on this list.
LONG_FILES = (
    "test_native.py",
    "project/test_wheel.py",
    "launch/test_vrun_restarts.py",
    "sanitizer/test_processes.py",
    "distributed/failures/test_program_checks.py",
    "project/test_torch_backend.py",
    "launch/test_vrun_keep.py",
    "distributed/test_flight_recorder.py",
    "distributed/collectives/test_matrix.py",
    "launch/test_vrun_netns.py",
    "device/cards/test_import.py",
    "launch/test_vrun.py",
    "distributed/failures/test_link_faults.py",
    "testing/test_rank_failures.py",
    "device/graphs/test_compile.py",
    "conformance/test_subset.py",
    "testing/test_marks.py",
    "testing/test_misuse.py",
    "device/profiling/test_profiling.py",
    "device/memory/test_allocator_settings.py",
)


def place_in_run(item: pytest.Item) -> int:
    path = (
        item.path.relative_to(ROOT / "tests").as_posix() if item.path.is_relative_to(ROOT / "tests") else ""
    )
    return LONG_FILES.index(path) if path in LONG_FILES else len(LONG_FILES)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=place_in_run)
    blocking = os.environ.get("VDEV_LAUNCH") == "blocking" or os.environ.get("VDEV_LAUNCH_BLOCKING") == "1"
    for item in items:
        if blocking and item.get_closest_marker("asynchronous"):
            item.add_marker(pytest.mark.skip(reason="operators run at their calls"))
        for mark in item.iter_markers("torch"):
            skip_with_other_torch(item, *mark.args, **mark.kwargs)


def skip_with_other_torch(item: pytest.Item, versions: str, reason: str) -> None:
    from vccl import _torch_version  # which imports torch

    if not _torch_version.is_one_of(versions):
        item.add_marker(pytest.mark.skip(reason=f"for torch {versions}: {reason}"))


class Process(subprocess.Popen):
    """A child with its output (both streams) as text, in a session of its own."""

    def __init__(self, command: Sequence[str | os.PathLike], env: dict[str, str | None], cwd: Path) -> None:
        merged = {key: value for key, value in {**os.environ, **env}.items() if value is not None}
        # A file, not a pipe: what outlives the child would keep a pipe open, and us waiting for its end.
        self.log = tempfile.TemporaryFile(mode="a+", errors="replace")  # noqa: SIM115
        super().__init__(
            [str(part) for part in command],
            env=merged,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def output(self, timeout: float) -> str:
        """All that it prints, until its end; fails the test if that takes longer than `timeout` seconds."""
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"{self.args} did not end within {timeout} s:\n{self.printed()}")
        return self.printed()

    def printed(self) -> str:
        """All that it has printed so far."""
        self.log.seek(0)
        return self.log.read()

    def kill(self) -> None:
        """Ends it and all that it started."""
        from vccl.launch.hosts import kill_tree

        kill_tree(self.pid)
        self.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """start(command, env={...}, cwd=...) starts a child that ends with the test. None unsets a variable."""
    children: list[Process] = []

    def start(command: Sequence[str | os.PathLike], env: dict | None = None, cwd: Path = tmp_path) -> Process:
        children.append(Process(command, env or {}, cwd))
        return children[-1]

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
        child.log.close()


@pytest.fixture
def run(start: Callable[..., Process]) -> Callable[..., str]:
    """run(command, timeout=..., status=0) returns the output of a child that has to end with that status.

    None is any status.
    """

    def run(
        command: Sequence[str | os.PathLike], timeout: float = 600, status: int | None = 0, **options
    ) -> str:
        child = start(command, **options)
        output = child.output(timeout)
        assert status in (None, child.returncode), f"{child.args} ended with {child.returncode}:\n{output}"
        return output

    return run


@pytest.fixture
def vrun(run: Callable[..., str]) -> Callable[..., str]:
    """vrun("--cards", 2, script, ...) returns the output of that command line."""

    def vrun(*arguments: object, **options) -> str:
        return run([sys.executable, "-m", "vccl.launch.vrun", *map(str, arguments)], **options)

    return vrun


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """script(text) writes a script for ranks of vrun, which has the usual imports, and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text("import os, signal, subprocess, sys, time\n" + text)
        return path

    return write
