"""The transport's MessagePack bytes are those of Python's msgpack."""

import subprocess
from pathlib import Path

import msgpack
import native_build

SOURCE = Path(__file__).resolve().parent / "test_msgpack.cpp"


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


def test_bytes_equal_python_msgpack() -> None:
    """Both pick the shortest form, so the bytes themselves are equal, and decode to the value."""
    program = native_build.programs([SOURCE])[SOURCE]
    output = subprocess.run([program, "--sample"], check=True, capture_output=True, timeout=60).stdout
    assert msgpack.unpackb(output) == sample()
    assert output == msgpack.packb(sample())
