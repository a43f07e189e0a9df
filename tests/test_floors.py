"""Checks the layering in rooms.json: a room uses only what stands below it, there only public headers.

A room is a folder, and may have folders of its own. Its public headers lie at its top. What lies in one of
its folders is for the room itself and for its tests. A room with a `library` in rooms.json is free of torch.
"""

import ast
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 450  # lines
CPP = {".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".inc"}
# Folders whose files belong to no room. Tests are checked apart; examples are user code.
OUTSIDE = {"build", "docs", "examples", "tests"}
TORCH = re.compile(r"(torch|ATen|c10|caffe2|pybind11)/|Python\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)


@dataclass(frozen=True)
class Room:
    """One entry of rooms.json. `folders` are relative to the room's own."""

    name: str
    floor: int
    may_include: tuple[str, ...]
    folders: tuple[str, ...]
    library: str = ""  # CMake's target; rooms with torch make one module together
    tests: str = ""  # the folder in tests/native
    package: str = ""  # for Python: the name under which the room is imported

    def holds(self, path: str) -> bool:
        """Whether a file lies at the room's top or in one of its folders."""
        folder = os.path.dirname(path)
        return folder in {self.name, *(f"{self.name}/{inner}" for inner in self.folders)}

    def publishes(self, path: str) -> bool:
        """Whether other rooms may include the file."""
        return os.path.dirname(path) == self.name


def read_rooms(root: Path) -> dict[str, Room]:
    entries = json.loads((root / "rooms.json").read_text())
    return {
        name: Room(
            name, **{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
        )
        for name, entry in entries.items()
    }


def sources(root: Path) -> Iterator[str]:
    """Yields every C++ and Python file of the project outside of OUTSIDE, relative to `root`."""
    for folder, folders, files in os.walk(root):
        top = Path(folder) == root
        folders[:] = sorted(
            name for name in folders if not name.startswith((".", "__")) and not (top and name in OUTSIDE)
        )
        for name in sorted(files):
            if Path(name).suffix in CPP | {".py"}:
                yield str((Path(folder) / name).relative_to(root))


def room_of(path: str, rooms: dict[str, Room]) -> Room | None:
    return next((room for room in rooms.values() if room.holds(path)), None)


def problems_of_table(rooms: dict[str, Room]) -> Iterator[str]:
    for room in rooms.values():
        for below in room.may_include:
            if below not in rooms:
                yield f"rooms.json lets {room.name} include {below}, which is no room"
            elif rooms[below].floor >= room.floor:
                yield f"rooms.json lets {room.name} include {below}, which does not stand below it"


def problems_of_include(path: str, name: str, own: Room, root: Path, rooms: dict[str, Room]) -> Iterator[str]:
    other = room_of(name, rooms)
    if other is None:
        yield f'{path} includes "{name}", which is not written from the repository root, or is in no room'
    elif not (root / name).is_file():
        yield f'{path} includes "{name}", which does not exist'
    elif other != own and other.name not in own.may_include:
        yield f"{path} includes {name}: {own.name} may not include {other.name}"
    elif other != own and not other.publishes(name):
        yield f"{path} includes {name}, which is not a public header of {other.name}"


def problems_of_cpp(path: str, own: Room, root: Path, rooms: dict[str, Room]) -> Iterator[str]:
    for quote, name in INCLUDE.findall((root / path).read_text()):
        if quote == '"':
            yield from problems_of_include(path, name, own, root, rooms)
        elif own.library and TORCH.match(name):
            yield f"{path} includes <{name}>, and {own.name} is free of torch"


def imports_of(path: str, own: Room, root: Path) -> Iterator[str]:
    """Yields the full name of everything that a Python file imports."""
    package = own.package + os.path.dirname(path).removeprefix(own.name).replace("/", ".")
    for node in ast.walk(ast.parse((root / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            yield from (".".join(filter(None, [*base, node.module, alias.name])) for alias in node.names)


def problems_of_python(path: str, own: Room, root: Path, rooms: dict[str, Room]) -> Iterator[str]:
    packages = {room.package: room for room in rooms.values() if room.package}
    for name in imports_of(path, own, root):
        found = [package for package in packages if f"{name}.".startswith(f"{package}.")]
        other = packages[max(found, key=len)] if found else own
        if other != own and other.name not in own.may_include:
            yield f"{path} imports {name}: {own.name} may not import {other.name}"


def problems_of_tests(root: Path, rooms: dict[str, Room]) -> Iterator[str]:
    """Yields the inner headers that the native tests of another room include."""
    for file in sorted((root / "tests" / "native").rglob("*.[ch]pp")):
        path = str(file.relative_to(root))
        for _, name in INCLUDE.findall(file.read_text()):
            room = room_of(name, rooms)
            if room and not room.publishes(name) and file.parent != root / "tests" / "native" / room.tests:
                yield f"{path} includes {name}, which is for {room.name} and its own tests"


def problems(root: Path) -> list[str]:
    rooms = read_rooms(root)
    found = [*problems_of_table(rooms), *problems_of_tests(root, rooms)]
    used = set()
    for path in sources(root):
        own = room_of(path, rooms)
        if own is None:
            found.append(f"{path} is in no room: rooms.json names the rooms and their folders")
            continue
        used.add(os.path.dirname(path))
        check = problems_of_python if path.endswith(".py") else problems_of_cpp
        found += check(path, own, root, rooms)
    listed = {f"{room.name}/{inner}" for room in rooms.values() for inner in room.folders} | set(rooms)
    return found + [f"{folder} is in rooms.json and has no file" for folder in sorted(listed - used)]


def test_every_file_is_in_a_room_and_uses_only_what_it_may():
    assert problems(ROOT) == []


def test_no_file_outgrows_a_reader():
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in sources(ROOT)}
    assert {path: lines for path, lines in lengths.items() if lines > LONGEST} == {}


def test_every_header_begins_with_what_it_is_for():
    headers = [path for path in sources(ROOT) if path.endswith(".hpp")]
    assert headers
    assert [path for path in headers if not (ROOT / path).read_text().startswith("// ")] == []


# A device type or a dispatch key of torch by which cards may go, with either name.
DEVICE_TYPE = re.compile(r"\b\w*PrivateUse1\w*|\b(?:DeviceType|DispatchKey)::\w*CUDA\b|\bk\w*CUDA\b")
NAMING = {"csrc_device/torch/" + name for name in ("device_type.hpp", "hooks.cpp", "torch_2_13.hpp")}


def names_of_device_types(text: str) -> list[str]:
    return DEVICE_TYPE.findall(re.sub(r"//.*", "", text))


def test_one_header_says_which_device_type_cards_have():
    """The hooks are beside it, because torch has one interface for each device type."""
    files = [path for path in sources(ROOT) if Path(path).suffix in CPP]
    found = {path: names_of_device_types((ROOT / path).read_text()) for path in files}
    assert {path for path, names in found.items() if names} | {"csrc_device/torch/torch_2_13.hpp"} == NAMING


@pytest.mark.parametrize(
    "text", ["c10::DeviceType::CUDA", "DispatchKey::SparseCUDA", "at::kCUDA", "AutogradPrivateUse1"]
)
def test_a_device_type_is_found(text):
    (name,) = names_of_device_types(text)
    assert text.endswith(name)
    assert names_of_device_types(f"// {text}") == []


def test_the_architecture_page_has_the_same_rooms():
    """Compares the page's table with rooms.json: floors, what a room may include, torch, and its folders."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `([^`]+)/` \| (.*) \| (.*) \|$", page, re.MULTILINE)
    rooms = read_rooms(ROOT)
    assert {name: int(floor) for floor, name, _, _ in rows} == {
        room.name: room.floor for room in rooms.values()
    }
    for _, name, contents, may_include in rows:
        room = rooms[name]
        assert set(re.findall(r"`([^`]+)/`", may_include)) == set(room.may_include), name
        assert set(re.findall(r"`([^`]+)/`", contents)) == set(room.folders), name
        assert ("No torch" in contents) == bool(room.library), name


# ---- the checks themselves, on a small project


@pytest.fixture
def project(tmp_path):
    """Writes a project of two rooms that is in order. Returns a function that adds a file and checks all."""
    rooms = {
        "below": {"floor": 0, "library": "b", "tests": "b", "may_include": [], "folders": ["inner"]},
        "above": {"floor": 1, "may_include": ["below"], "folders": []},
        "tool": {"floor": 2, "package": "tool", "may_include": [], "folders": []},
        "app": {"floor": 3, "package": "tool.app", "may_include": ["tool"], "folders": []},
    }
    files = {
        "rooms.json": json.dumps(rooms),
        "below/public.hpp": "",
        "below/inner/hidden.hpp": '#include "below/public.hpp"\n#include <vector>\n',
        "above/use.cpp": '#include "below/public.hpp"\n#include <torch/torch.h>\n',
        "tests/native/b/test.cpp": '#include "below/inner/hidden.hpp"\n',
        "tool/__init__.py": "",
        "app/main.py": "from tool import x\nfrom . import y\n",
    }

    def check(path: str = "", text: str = "") -> list[str]:
        for name, content in (files | ({path: text} if path else {})).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        return problems(tmp_path)

    return check


def test_a_project_in_order_has_no_problems(project):
    assert project() == []


@pytest.mark.parametrize(
    ("path", "text", "problem"),
    [
        ("below/up.cpp", '#include "above/use.cpp"', "below may not include above"),
        ("below/torch.cpp", "#include <ATen/ATen.h>", "free of torch"),
        ("below/gone.cpp", '#include "below/gone.hpp"', "does not exist"),
        ("below/bare.cpp", '#include "public.hpp"', "not written from the repository root"),
        ("above/deep.cpp", '#include "below/inner/hidden.hpp"', "not a public header of below"),
        ("below/new/file.cpp", "", "below/new/file.cpp is in no room"),
        ("below/inner/deeper/file.hpp", "", "below/inner/deeper/file.hpp is in no room"),
        ("elsewhere/file.h", "", "elsewhere/file.h is in no room"),
        ("file.cc", "", "file.cc is in no room"),
        ("tests/native/other/test.cpp", '#include "below/inner/hidden.hpp"', "for below and its own tests"),
        ("tool/use.py", "import tool.app.main", "tool may not import app"),
        ("tool/use.py", "from tool import app", "tool may not import app"),
        ("tool/use.py", "from .app import main", "tool may not import app"),
    ],
)
def test_what_is_out_of_order_is_found(project, path, text, problem):
    (found,) = project(path, text)
    assert problem in found


def test_a_table_that_points_upwards_is_found(project):
    rooms = {"below": {"floor": 0, "may_include": ["above", "cellar"], "folders": ["empty"]}}
    rooms["above"] = {"floor": 1, "may_include": [], "folders": []}
    found = "\n".join(project("rooms.json", json.dumps(rooms)))
    assert "which does not stand below it" in found
    assert "cellar, which is no room" in found
    assert "below/empty is in rooms.json and has no file" in found
