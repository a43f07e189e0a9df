"""The torch-free tests: builds tests/native with CMake, then runs each executable as one case.

VCCL_TEST_SANITIZE=thread or address builds and runs them under that sanitizer, and VCCL_TEST_SHORT=1 leaves
out what takes minutes there (`make sanitize SHORT=1`). VCCL_TEST_SANITIZED=1 leaves out what that has run, so
that continuous integration runs no executable three times (`make test SANITIZED=1`).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import filelock
import pytest

ROOT = Path(__file__).resolve().parent.parent
SANITIZE = os.environ.get("VCCL_TEST_SANITIZE", "")
SHORT = os.environ.get("VCCL_TEST_SHORT", "") not in ("", "0")
SANITIZED = os.environ.get("VCCL_TEST_SANITIZED", "") not in ("", "0")
BUILD = ROOT / "build" / ("native-" + SANITIZE if SANITIZE else "native")
SOURCES = sorted((ROOT / "tests" / "native").glob("*/test_*.cpp"))
LONG = {
    "collectives/test_algorithms.cpp",
    "collectives/test_killed_ranks.cpp",
    "collectives/test_communicators.cpp",
    "transport/test_cycles.cpp",
}
# Looks at VCCL_TEST_SHORT itself, and does less then.
SHORTENED = {"collectives/test_delays.cpp"}
TIMEOUT = 1800  # seconds an executable, which takes minutes where a sanitizer or a busy machine slows it
# Leaks count: what a test leaves behind, a training job leaves behind every step.
ENVIRONMENT = {
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
    "ASAN_OPTIONS": "halt_on_error=1:detect_leaks=1",
    "VIRTUAL_ENV": sys.prefix,  # where libzmq is looked for
}


@pytest.fixture(scope="session")
def build() -> Path:
    """The build folder, up to date. Workers that run at the same time take turns."""
    assert SANITIZE in ("", "thread", "address"), f"VCCL_TEST_SANITIZE={SANITIZE}: thread or address"
    BUILD.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(BUILD / "lock"):
        options = ["-DVCCL_TORCH=OFF", "-DVCCL_TESTS=ON", f"-DVCCL_SANITIZE={SANITIZE}"]
        call("cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", *options)
        left = [target(source) for source in SOURCES if name(source) in LONG | SHORTENED]
        call("cmake", "--build", BUILD, *(["--target", *left] if SANITIZED else []))
    return BUILD


def call(*command: object) -> None:
    # cmake and ninja are installed beside this Python, whether or not its folder is on the PATH.
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-10_000:]


def name(source: Path) -> str:
    return str(source.relative_to(ROOT / "tests" / "native"))


def target(source: Path) -> str:
    return f"{source.parent.name}_{source.stem}"


@pytest.mark.parametrize("source", SOURCES, ids=name)
def test_native(build, run, source):
    if SHORT and name(source) in LONG:
        pytest.skip("takes minutes; VCCL_TEST_SHORT is set")
    if SANITIZED and name(source) not in LONG | SHORTENED:
        pytest.skip("ran under the sanitizers; VCCL_TEST_SANITIZED is set")
    executable = build / "tests" / "native" / target(source)
    output = run([executable], timeout=TIMEOUT, env=ENVIRONMENT)
    assert " passed, 0 failed" in output, output


def test_every_room_has_native_tests():
    rooms = json.loads((ROOT / "rooms.json").read_text()).values()
    assert {source.parent.name for source in SOURCES} == {room["tests"] for room in rooms if "tests" in room}
    assert {name(source) for source in SOURCES} >= LONG | SHORTENED
