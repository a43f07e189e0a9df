"""Runs the programs of tests/native on aarch64, under qemu-user: `make aarch64`.

VCCL_TEST_MACHINE=aarch64 asks for it. Debian's cross-compiler makes the programs and qemu-aarch64 runs them.
libzmq and libcrypto for aarch64 come from PyPI and from Debian, into build/aarch64-libraries.

The emulator shows no weak memory: a thread of the program is a thread of this machine, whose processor orders
stores as its kind does. tests/memory_orders looks after the memory orders.
"""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ROOT / "build" / "aarch64-libraries"
SYSROOT = Path("/usr/aarch64-linux-gnu")
TOOLS = {
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "qemu-aarch64": "qemu-user",
}  # and Debian's packages

# What qemu-user cannot do, and so which cases do not run.
NO_DETACH = (
    "qemu-user refuses SO_DETACH_FILTER, so a listener that answers nobody for a while never answers again"
)
NO_ADVICE = "qemu-user ignores madvise(), so pages are neither taken nor kept from a child by it"
OTHER_BIRTH = "qemu-user shows a process another time of its start in /proc than it shows other processes"
GROWS = "the memory of qemu-user grows with the code that it has translated"
TOO_SLOW = "qemu-user takes minutes"

# For each file, why it does not run, or why these cases do not.
LEFT_OUT: dict[str, str | dict[str, str]] = {
    "recorder/test_flight_recorder.cpp": {"stopped_and_dead_processes_are_read": OTHER_BIRTH},
    "runtime/sharing/test_process_event.cpp": OTHER_BIRTH,
    "transport/links/test_cut_links.cpp": NO_DETACH,
    "transport/messages/test_cut_messages.cpp": NO_DETACH,
    "transport/meeting/test_cut_meeting.cpp": NO_DETACH,
    "transport/meeting/test_descriptors.cpp": {
        "strangers_hold_so_many_connections_and_no_more": NO_DETACH,
        "a_rank_reaches_its_stream_though_strangers_hold_all_places": NO_DETACH,
        "strangers_are_told_of_once": NO_DETACH,
    },
    "transport/links/test_on_path.cpp": {"a_stranger_who_floods_a_stream_is_turned_away": NO_DETACH},
    "runtime/allocator/test_allocator.cpp": {"pages_are_taken_only_for_what_is_handed_out": NO_ADVICE},
    "runtime/memory/test_arena.cpp": {
        "populate_backs_and_discard_gives_back": NO_ADVICE,
        "odd_ranges_and_bad_ones": NO_ADVICE,
    },
    "runtime/memory/test_host_memory.cpp": {
        "a_freed_block_is_used_again_with_its_pages": NO_ADVICE,
        "pages_beyond_the_bound_go_back": NO_ADVICE,
        "a_child_has_the_memory_as_it_was_and_changes_only_its_own": NO_ADVICE,
        "a_child_of_a_child": NO_ADVICE,
        "a_child_frees_what_it_inherited_and_gets_nothing": NO_ADVICE,
    },
    "transport/host/test_cycles.cpp": {"processes_on_one_host": GROWS, "processes_on_two_hosts": GROWS},
    "collectives/test_algorithms.cpp": {
        "every_algorithm_in_staged_memory": TOO_SLOW,
        "every_algorithm_where_memory_is_of_both_kinds": TOO_SLOW,
        "every_dtype_and_op_by_every_algorithm": TOO_SLOW,
        "long_buffers_by_every_algorithm": TOO_SLOW,
        "forked_ranks_with_every_algorithm": TOO_SLOW,
        "staged_pieces_that_end_at_a_boundary": TOO_SLOW,
    },
    "collectives/test_communicators.cpp": {"long_buffers": TOO_SLOW},
    "collectives/test_hierarchical.cpp": {
        "every_dtype_and_op": TOO_SLOW,
        "every_collective_in_every_layout": TOO_SLOW,
        "buffers_of_many_passes": TOO_SLOW,
    },
    "collectives/test_long_buffers.cpp": {
        "long_pushes_to_places_of_different_alignment": TOO_SLOW,
        "what_leaves_the_caches_by_direct_algorithms": TOO_SLOW,
        "long_uneven_chunks": TOO_SLOW,
    },
}

# A processor without the instructions for bfloat16, for the files that compare the reduction loops.
OLDER = "cortex-a72"
ALSO_OLDER = {"collectives/test_reduce_kernels.cpp"}


def what_is_missing() -> str:
    """One line that says what to install, or an empty text."""
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    return "" if not missing else f"make aarch64 needs: apt-get install {' '.join(missing)}"


def left_out(name: str) -> tuple[str, dict[str, str]]:
    """Why a file does not run, or an empty text, and the cases of it that do not run, with their reasons."""
    entry = LEFT_OUT.get(name, {})
    return (entry, {}) if isinstance(entry, str) else ("", entry)


def command(program: Path, name: str, cpu: str = "max") -> list[str | Path]:
    return ["qemu-aarch64", "-cpu", cpu, "-L", SYSROOT, program, *(f"-{case}" for case in left_out(name)[1])]


@functools.cache
def environment() -> dict[str, str]:
    """Where the programs find libzmq and libcrypto."""
    zmq, crypto = fetch_zmq(), fetch_crypto()
    return {"VCCL_ZMQ_LIBRARY": str(zmq), "VCCL_CRYPTO_LIBRARY": str(crypto)}


def fetch_zmq() -> Path:
    """The libzmq of pyzmq's wheel, with the libsodium beside it."""
    if not (found := list(LIBRARIES.glob("pyzmq.libs/libzmq*.so*"))):
        with tempfile.TemporaryDirectory() as folder:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            platforms = ["--platform=manylinux_2_28_aarch64", "--platform=manylinux2014_aarch64"]
            subprocess.run([*pip, *platforms, f"--dest={folder}", "pyzmq>=26"], check=True)
            wheel = zipfile.ZipFile(next(Path(folder).glob("*.whl")))
            wheel.extractall(LIBRARIES, [name for name in wheel.namelist() if name.startswith("pyzmq.libs/")])
        found = list(LIBRARIES.glob("pyzmq.libs/libzmq*.so*"))
    return found[0]


def fetch_crypto() -> Path:
    """Debian's libcrypto. apt-get keeps its lists in a folder of its own, so the system's do not change."""
    library = LIBRARIES / "libcrypto.so.3"
    if not library.exists():
        LIBRARIES.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            for needed in ("lists/partial", "cache/archives/partial"):
                Path(folder, needed).mkdir(parents=True)
            settings = {
                "APT::Architecture": "arm64",
                "APT::Architectures": "arm64",
                "APT::Sandbox::User": "",
                "Dir::State": folder,
                "Dir::State::status": "/dev/null",
                "Dir::Cache": f"{folder}/cache",
            }
            apt = ["apt-get", "--quiet=2", *(f"--option={name}={value}" for name, value in settings.items())]
            subprocess.run([*apt, "update"], check=True)
            subprocess.run([*apt, "download", "libssl3"], check=True, cwd=folder)
            subprocess.run(["dpkg", "-x", next(Path(folder).glob("*.deb")), f"{folder}/files"], check=True)
            shutil.copy(next(Path(folder).glob("files/**/libcrypto.so.3")), library)
    return library


if __name__ == "__main__":
    if missing := what_is_missing():
        sys.exit(missing)
    os.execvp(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[1:]])
