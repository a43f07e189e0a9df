"""Builds the programs of tests/native with CMake.

VCCL_TEST_SANITIZE=thread or address builds them under that sanitizer, in a folder of its own, and
VCCL_TEST_MACHINE=aarch64 for that machine (aarch64.py). Without both they are built beside the compiled
module, from the same objects of the torch-free rooms.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import filelock

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "native"
SANITIZE = os.environ.get("VCCL_TEST_SANITIZE", "")
MACHINE = os.environ.get("VCCL_TEST_MACHINE", "")
MODULE_BUILD = ROOT / "build" / "RelWithDebInfo"
TORCH_FREE_BUILD = ROOT / "build" / "-".join(filter(None, ["native", MACHINE, SANITIZE]))


def room_folder(source: Path) -> str:
    """The folder of tests/native in which the tests of a room lie, themselves or in folders by subject."""
    return source.relative_to(TESTS).parts[0]


def target(source: Path) -> str:
    """CMake's name for the program of one test file."""
    return f"{room_folder(source)}_{source.stem}"


def programs(sources: Iterable[Path]) -> dict[Path, Path]:
    """Returns the executable of each test file, up to date."""
    sources = list(sources)
    folder = build(map(target, sources))
    return {source: folder / "tests" / "native" / target(source) for source in sources}


def build(targets: Iterable[str]) -> Path:
    """Builds CMake's `targets` and returns the build folder. Concurrent callers take turns."""
    assert SANITIZE in ("", "thread", "address"), f"VCCL_TEST_SANITIZE={SANITIZE}: thread or address"
    assert MACHINE in ("", "aarch64"), f"VCCL_TEST_MACHINE={MACHINE}: aarch64"
    beside_module = not SANITIZE and not MACHINE and (MODULE_BUILD / "CMakeCache.txt").exists()
    folder = MODULE_BUILD if beside_module else TORCH_FREE_BUILD
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder / "lock"):
        if beside_module:
            call("cmake", "-DVCCL_TESTS=ON", folder)
        else:
            options = ["-DVCCL_TORCH=OFF", "-DVCCL_TESTS=ON", f"-DVCCL_SANITIZE={SANITIZE}"]
            if MACHINE:
                options.append(f"-DCMAKE_TOOLCHAIN_FILE={TESTS / MACHINE}.cmake")
            call("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *options)
        call("cmake", "--build", folder, "--target", *targets)
    return folder


def call(*command: object) -> None:
    # cmake and ninja are installed beside this Python, whether or not its folder is on the PATH.
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-10_000:]
