"""The transport's MessagePack bytes are those of Python's msgpack."""

import shutil
import subprocess
from pathlib import Path

import msgpack
import pytest

SOURCE = Path(__file__).resolve().parent
ROOT = SOURCE.parents[2]


def sample() -> dict:
    """The value that test_msgpack.cpp builds under the same name, keys in order."""
    integers = [sign << shift for shift in range(63) for sign in (1, -1)] + [2**64 - 1, -(2**63)]
    return {
        "array": [True] * 20,
        "bin": b"\x01" * 300,
        "integers": integers,
        "keys": {f"k{i}": i for i in range(10, 30)},
        "long": "y" * 70_000,
        "nil": None,
        "text": "café",
    }


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """test_msgpack.cpp, compiled with the few files it needs."""
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler, "no C++ compiler"
    target = tmp_path_factory.mktemp("msgpack") / "test_msgpack"
    transport = [
        ROOT / "transport" / name for name in ("support/msgpack.cpp", "error.cpp", "support/text.cpp")
    ]
    sources = [SOURCE / "test_msgpack.cpp", ROOT / "base/text.cpp", *transport]
    command = [compiler, "-std=c++20", "-O1", f"-I{ROOT}", *sources, "-o", target]
    subprocess.run(command, check=True, timeout=300)
    return target


def test_bytes_equal_python_msgpack(program: Path) -> None:
    """Both pick the shortest form, so the bytes themselves are equal, and decode to the value."""
    output = subprocess.run([program, "--sample"], check=True, capture_output=True, timeout=60).stdout
    assert msgpack.unpackb(output) == sample()
    assert output == msgpack.packb(sample())
