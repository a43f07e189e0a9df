"""Reads the layering in rooms.json, and finds what in a source tree breaks it.

A room is a folder, and may have folders of its own, which are listed from the bottom to the top:

- A room uses only rooms below it, and of these only the headers at their top, which are their front.
- A file in a folder of a room uses its own folder, those that are listed before it, and the front.
- In C++ the front holds only headers that another room uses, and the files that implement them. What
  includes Python's headers lies in a folder named ``python``. No header includes itself by a circle.
- In Python the modules at a room's top and its folders do not import each other in circles.

A room with a ``library`` is free of torch.
"""

import ast
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

CPP = {".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".inc"}
# Folders whose files belong to no room. Tests are checked apart; examples are user code.
OUTSIDE = {"build", "dist", "docs", "examples", "tests"}
# What extensions are compiled with. Its headers have the names and the order of CUDA's and torch's own.
TOOLKIT = "vccl/cuda/cpp/toolkit"
MOST_FILES = 25  # in one folder, without those in its folders
TORCH = re.compile(r"(torch|ATen|c10|caffe2|pybind11)/|Python\.h")
# Headers that include Python.h. The library would not compile with others of torch's, as it has no path to
# Python.h.
PYTHON = re.compile(r"Python\.h|pybind11/|torch/csrc/(Event|Exceptions|utils/(pybind|tensor_new))\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)


@dataclass(frozen=True)
class Room:
    """One entry of rooms.json. `folders` are relative to the room's own, the lowest first."""

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

    def folder_of(self, path: str) -> str:
        """Returns the room's folder that a file lies in, or an empty text for the room's top."""
        return os.path.dirname(path).removeprefix(self.name).removeprefix("/")

    def stands_above(self, path: str, other: str) -> bool:
        """Whether `other` lies in a folder of this room that stands above the folder of `path`."""
        folder, used = self.folder_of(path), self.folder_of(other)
        return bool(folder and used) and self.folders.index(used) > self.folders.index(folder)


class Tree:
    """A source tree: its rooms, the C++ and Python files in them, and the C++ files' includes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rooms = read_rooms(root)
        self.sources = list(sources(root))
        self.room = {path: room_of(path, self.rooms) for path in self.sources}
        self.includes = {
            path: INCLUDE.findall((root / path).read_text())
            for path in self.sources
            if Path(path).suffix in CPP
        }


def read_rooms(root: Path) -> dict[str, Room]:
    entries = json.loads((root / "rooms.json").read_text())
    return {
        name: Room(
            name, **{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
        )
        for name, entry in entries.items()
    }


def folders(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields each folder of the tree, relative to `root`, with the names of its files. Leaves out links."""
    for folder, inner, files in os.walk(root):
        top = Path(folder) == root
        inner[:] = sorted(
            name
            for name in inner
            if not name.startswith((".", "__")) and not (top and name in {"build", "dist"})
        )
        yield str(Path(folder).relative_to(root)), sorted(files)


def sources(root: Path) -> Iterator[str]:
    """Yields every C++ and Python file of the project outside of OUTSIDE and TOOLKIT, relative to `root`."""
    for folder, files in folders(root):
        if folder.partition("/")[0] not in OUTSIDE and not f"{folder}/".startswith(f"{TOOLKIT}/"):
            yield from (str(Path(folder) / name) for name in files if Path(name).suffix in CPP | {".py"})


def room_of(path: str, rooms: dict[str, Room]) -> Room | None:
    return next((room for room in rooms.values() if room.holds(path)), None)


def problems(root: Path) -> list[str]:
    """Returns a sentence for everything that breaks the layering."""
    tree = Tree(root)
    found = [
        *_problems_of_table(tree),
        *_problems_of_tests(tree),
        *_problems_of_fronts(tree),
        *_problems_of_circles(tree),
        *_problems_of_packages(tree),
        *_problems_of_sizes(root),
    ]
    for path, own in tree.room.items():
        if own is None:
            found.append(f"{path} is in no room: rooms.json names the rooms and their folders")
        elif path.endswith(".py"):
            found += _problems_of_python(path, own, tree)
        else:
            found += _problems_of_cpp(path, own, tree)
    return found


def _problems_of_table(tree: Tree) -> Iterator[str]:
    rooms = tree.rooms
    for room in rooms.values():
        for below in room.may_include:
            if below not in rooms:
                yield f"rooms.json lets {room.name} include {below}, which is no room"
            elif rooms[below].floor >= room.floor:
                yield f"rooms.json lets {room.name} include {below}, which does not stand below it"
    used = {os.path.dirname(path) for path, room in tree.room.items() if room}
    listed = {f"{room.name}/{inner}" for room in rooms.values() for inner in room.folders}
    for folder in sorted(listed - used):
        yield f"{folder} is in rooms.json and has no file"


def _problems_of_cpp(path: str, own: Room, tree: Tree) -> Iterator[str]:
    for quote, name in tree.includes[path]:
        if quote == '"':
            yield from _problems_of_include(path, name, own, tree)
        elif own.library and TORCH.match(name):
            yield f"{path} includes <{name}>, and {own.name} is free of torch"
    yield from _problems_of_interpreter(path, tree)


def _problems_of_interpreter(path: str, tree: Tree) -> Iterator[str]:
    """Yields that a file includes Python's headers outside of a folder `python`, or does not inside of one.

    CMake makes the module of these folders, and a library without Python of all others. A header counts with
    the .cpp file that has its name.
    """
    inside = os.path.basename(os.path.dirname(path)) == "python"
    together = {str(Path(path).with_suffix(suffix)) for suffix in (".hpp", ".cpp")} if inside else {path}
    included = [name for file in together for _, name in tree.includes.get(file, ())]
    found = next((name for name in included if PYTHON.match(name)), None)
    if found and not inside:
        yield f"{path} includes <{found}>, and lies in no folder `python`"
    elif inside and not found:
        yield f"{path} lies in a folder `python`, and includes none of Python's headers"


def _problems_of_include(path: str, name: str, own: Room, tree: Tree) -> Iterator[str]:
    other = room_of(name, tree.rooms)
    if other is None:
        yield f'{path} includes "{name}", which is not written from the repository root, or is in no room'
    elif not (tree.root / name).is_file():
        yield f'{path} includes "{name}", which does not exist'
    elif other != own and other.name not in own.may_include:
        yield f"{path} includes {name}: {own.name} may not include {other.name}"
    elif other != own and not other.publishes(name):
        yield f"{path} includes {name}, which is not a public header of {other.name}"
    elif other == own and own.stands_above(path, name):
        yield f"{path} includes {name}, whose folder stands above its own"


def _problems_of_fronts(tree: Tree) -> Iterator[str]:
    """Yields what lies at the top of a C++ room and is not used by other rooms."""
    used = {
        name
        for path, includes in tree.includes.items()
        for _, name in includes
        if tree.room[path] != room_of(name, tree.rooms)
    }
    for path, own in tree.room.items():
        if own is None or own.package or not own.publishes(path):
            continue
        stem = Path(path).stem
        if Path(path).suffix in {".h", ".hpp"}:
            if path not in used:
                yield f"{path} is at the top of {own.name}, and no other room includes it"
        elif not any(stem.startswith(Path(name).stem) for name in used if own.publishes(name)):
            yield f"{path} is at the top of {own.name}, and implements no header there"


def _problems_of_circles(tree: Tree) -> Iterator[str]:
    headers = {
        path: [name for quote, name in includes if quote == '"']
        for path, includes in tree.includes.items()
        if path.endswith((".h", ".hpp"))
    }
    for circle in circles(headers):
        yield f"headers include each other in a circle: {', '.join(circle)}"


def circles(uses: dict[str, Iterable[str]]) -> list[list[str]]:
    """Returns the sets of names that use each other, directly or through others, each sorted."""
    reached: dict[str, set[str]] = {}
    for name in uses:
        found: set[str] = set()
        ahead = [name]
        while ahead:
            for used in uses.get(ahead.pop(), ()):
                if used not in found:
                    found.add(used)
                    ahead.append(used)
        reached[name] = found
    sets = {
        tuple(sorted(other for other in reached if other in found and name in reached[other]))
        for name, found in reached.items()
        if name in found
    }
    return [list(names) for names in sorted(sets)]


def _problems_of_tests(tree: Tree) -> Iterator[str]:
    """Yields the inner headers that the native tests of another room include."""
    tests = tree.root / "tests" / "native"
    for file in sorted(tests.rglob("*.[ch]pp")):
        path = str(file.relative_to(tree.root))
        for _, name in INCLUDE.findall(file.read_text()):
            room = room_of(name, tree.rooms)
            if room and not room.publishes(name) and not (room.tests and tests / room.tests in file.parents):
                yield f"{path} includes {name}, which is for {room.name} and its own tests"


def _problems_of_sizes(root: Path) -> Iterator[str]:
    for folder, files in folders(root):
        if len(files) > MOST_FILES:
            yield f"{folder} has {len(files)} files of its own; {MOST_FILES} are the most"


# ---- Python


def _module_of(path: str, own: Room) -> str:
    name = own.package + path.removeprefix(own.name).removesuffix(".py").replace("/", ".")
    return name.removesuffix(".__init__")


def imports_of(path: str, own: Room, root: Path) -> Iterator[str]:
    """Yields the full name of everything that a Python file imports."""
    package = own.package + os.path.dirname(path).removeprefix(own.name).replace("/", ".")
    for node in ast.walk(ast.parse((root / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            yield from (".".join(filter(None, [*base, node.module, alias.name])) for alias in node.names)


def _problems_of_python(path: str, own: Room, tree: Tree) -> Iterator[str]:
    packages = {room.package: room for room in tree.rooms.values() if room.package}
    for name in imports_of(path, own, tree.root):
        found = [package for package in packages if f"{name}.".startswith(f"{package}.")]
        other = packages[max(found, key=len)] if found else own
        if other != own and other.name not in own.may_include:
            yield f"{path} imports {name}: {own.name} may not import {other.name}"


def _problems_of_packages(tree: Tree) -> Iterator[str]:
    """Yields imports of a folder that stands above, and circles of a room's folders and top modules."""
    for own in tree.rooms.values():
        if own.package:
            yield from _problems_of_package(own, tree)


def _problems_of_package(own: Room, tree: Tree) -> Iterator[str]:
    files = {
        _module_of(path, own): path
        for path, room in tree.room.items()
        if room == own and path.endswith(".py")
    }
    uses: dict[str, set[str]] = {}
    for module, path in files.items():
        unit = own.folder_of(path) or module
        uses.setdefault(unit, set())
        for imported in imports_of(path, own, tree.root):
            other = files.get(imported) or files.get(imported.rpartition(".")[0])
            # The compiled module is imported as a module of Python is, and lies below all of them.
            if other is None or imported == f"{own.package}._C":
                continue
            used = own.folder_of(other) or _module_of(other, own)
            if used != unit:
                uses[unit].add(used)
            if own.stands_above(path, other):
                yield f"{path} imports {imported}, whose folder stands above its own"
    for circle in circles({unit: sorted(used) for unit, used in uses.items()}):
        yield f"{own.name} has parts that import each other in a circle: {', '.join(circle)}"
