"""The torch-free tests: runs each program of tests/native as one case.

VCCL_TEST_SANITIZE=thread or address runs them under that sanitizer, and VCCL_TEST_SHORT=1 leaves out what
takes minutes there (`make sanitize SHORT=1`). VCCL_TEST_CHANGED=1 leaves out the rooms that no recent change
concerns (changed_rooms.py). VCCL_TEST_MACHINE=aarch64 runs them for that machine under an emulator
(aarch64.py), in the short form. VCCL_TEST_SANITIZED=1 leaves out what the sanitizers have run, so that
continuous integration runs no program three times (`make test SANITIZED=1`).
"""

import functools
import os
import sys
from pathlib import Path

import aarch64
import changed_rooms
import native_build
import pytest
from native_build import MACHINE, ROOT
from rooms import read_rooms

SHORT = os.environ.get("VCCL_TEST_SHORT", "") not in ("", "0")
CHANGED = os.environ.get("VCCL_TEST_CHANGED", "") not in ("", "0")
SANITIZED = os.environ.get("VCCL_TEST_SANITIZED", "") not in ("", "0")
SOURCES = sorted(native_build.TESTS.glob("*/**/test_*.cpp"))
LONG = {
    "collectives/test_algorithms.cpp",
    "collectives/test_hierarchical.cpp",
    "collectives/test_killed_ranks.cpp",
    "collectives/test_long_buffers.cpp",
    "collectives/test_communicators.cpp",
    "transport/host/test_cycles.cpp",
    "transport/meeting/test_cut_meeting.cpp",
}
# Looks at VCCL_TEST_SHORT itself, and does less then.
SHORTENED = {"collectives/test_delays.cpp"}
TIMEOUT = 1800  # seconds a program, which takes minutes where a sanitizer or a busy machine slows it
# Leaks count: what a test leaves behind, a training job leaves behind every step.
ENVIRONMENT = {
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
    "ASAN_OPTIONS": "halt_on_error=1:detect_leaks=1",
    "VIRTUAL_ENV": sys.prefix,  # where libzmq is looked for
}


def name(source: Path) -> str:
    return str(source.relative_to(native_build.TESTS))


@functools.cache
def folders_to_sanitize() -> set[str]:
    everything = set(map(native_build.room_folder, SOURCES))
    return changed_rooms.folders_to_test() if CHANGED else everything


def why_left_out(source: Path) -> str | None:
    sanitized = native_build.room_folder(source) in folders_to_sanitize()
    if native_build.SANITIZE and not sanitized:
        return "no recent change concerns it; VCCL_TEST_CHANGED is set"
    if native_build.SANITIZE and SHORT and name(source) in LONG:
        return "takes minutes; VCCL_TEST_SHORT is set"
    if MACHINE and (why := aarch64.left_out(name(source))[0]):
        return why
    if SANITIZED and sanitized and name(source) not in LONG | SHORTENED:
        return "ran under the sanitizers; VCCL_TEST_SANITIZED is set"
    return None


@pytest.fixture(scope="session")
def programs(request) -> dict[Path, Path]:
    """The programs of the test files that are about to run."""
    cases = [item for item in request.session.items if item.function is test_native]
    chosen = [case.callspec.params["source"] for case in cases]
    return native_build.programs(source for source in chosen if not why_left_out(source))


@pytest.mark.parametrize("source", SOURCES, ids=name)
def test_native(request, run, source):
    if why := why_left_out(source):
        pytest.skip(why)
    program = request.getfixturevalue("programs")[source]
    if not MACHINE:
        output = run([program], timeout=TIMEOUT, env=ENVIRONMENT)
        assert " passed, 0 failed" in output, output
        return
    for cpu in ("max", *[aarch64.OLDER] * (name(source) in aarch64.ALSO_OLDER)):
        environment = ENVIRONMENT | aarch64.environment() | {"VCCL_TEST_SHORT": "1"}
        output = run(aarch64.command(program, name(source), cpu), timeout=TIMEOUT, env=environment)
        assert " passed, 0 failed" in output, output


def test_every_room_has_native_tests():
    rooms = read_rooms(ROOT).values()
    assert set(map(native_build.room_folder, SOURCES)) == {room.tests for room in rooms if room.tests}
    assert {name(source) for source in SOURCES} >= LONG | SHORTENED


@pytest.mark.daily
@pytest.mark.skipif(native_build.SANITIZE != "", reason="built once")
def test_the_native_benchmarks_build():
    native_build.build(["bench_collectives", "bench_kernels", "bench_messages"])
