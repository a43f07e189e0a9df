"""The floors of the house: a room includes only what stands below it, and torch-free rooms no torch."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Room, and the rooms that its files may include (its own is among them). The most specific folder counts.
ROOMS = {
    "transport": {"transport"},
    "csrc_device/runtime": {"csrc_device/runtime"},
    "csrc_pg/collectives": {"csrc_pg/collectives", "transport"},
    "csrc_device/torch": {"csrc_device/torch", "csrc_device/runtime"},
    "csrc_pg": {"csrc_pg", "csrc_pg/collectives", "transport", "csrc_device/torch", "csrc_device/runtime"},
}
TORCH_FREE = {"transport", "csrc_device/runtime", "csrc_pg/collectives"}
TORCH = re.compile(r"(torch|ATen|c10|caffe2|pybind11)/|Python\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)

FILES = sorted(path for room in ROOMS for path in (ROOT / room).glob("*") if path.suffix in (".cpp", ".hpp"))


def room_of(path: str) -> str | None:
    folder = path.rpartition("/")[0]
    return max(
        (room for room in ROOMS if folder == room or folder.startswith(room + "/")), key=len, default=None
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_includes_point_downwards(path):
    own = room_of(str(path.relative_to(ROOT)))
    for quote, name in INCLUDE.findall(path.read_text()):
        if quote == '"':
            room = room_of(name)
            assert room, f'"{name}" is not written from the repository root, or is in no room'
            assert room in ROOMS[own], f"{own} must not include {name}: {room} does not stand below it"
            assert (ROOT / name).is_file(), f"{name} does not exist"
        else:
            assert not (own in TORCH_FREE and TORCH.match(name)), f"{own} is torch-free and includes <{name}>"


def test_every_room_has_files():
    assert {room_of(str(path.relative_to(ROOT))) for path in FILES} == set(ROOMS)


def test_no_file_outgrows_a_reader():
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    assert {name: lines for name, lines in long.items() if lines > 600} == {}
