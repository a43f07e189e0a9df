"""Checks that the source tree keeps the layering in rooms.json, and the checks of ``rooms.py`` themselves."""

import json
import re
from pathlib import Path

import pytest
from rooms import CPP, problems, read_rooms, sources

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 450  # lines


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
NAMING = {"csrc_device/torch/device_type.hpp", "csrc_device/torch/device/hooks.cpp"}


def names_of_device_types(text: str) -> list[str]:
    return DEVICE_TYPE.findall(re.sub(r"//.*", "", text))


def test_one_header_says_which_device_type_cards_have():
    """The hooks are beside it, because torch has one interface for each device type."""
    files = [path for path in sources(ROOT) if Path(path).suffix in CPP]
    found = {path: names_of_device_types((ROOT / path).read_text()) for path in files}
    assert {path for path, names in found.items() if names} == NAMING


@pytest.mark.parametrize(
    "text", ["c10::DeviceType::CUDA", "DispatchKey::SparseCUDA", "at::kCUDA", "AutogradPrivateUse1"]
)
def test_a_device_type_is_found(text):
    (name,) = names_of_device_types(text)
    assert text.endswith(name)
    assert names_of_device_types(f"// {text}") == []


def test_the_architecture_page_has_the_same_rooms():
    """Compares the page's table with rooms.json: floors, what a room may include, torch, and its folders."""
    page = (ROOT / "docs" / "inside" / "architecture.md").read_text()
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
    """Writes a project of four rooms that is in order. Returns a function that adds a file and checks all."""
    rooms = {
        "below": {
            "floor": 0,
            "library": "b",
            "tests": "b",
            "may_include": [],
            "folders": ["inner", "outer"],
        },
        "above": {"floor": 1, "may_include": ["below"], "folders": ["inner", "python"]},
        "tool": {"floor": 2, "package": "tool", "may_include": [], "folders": ["low", "high"]},
        "app": {"floor": 3, "package": "tool.app", "may_include": ["tool"], "folders": []},
    }
    files = {
        "rooms.json": json.dumps(rooms),
        "below/public.hpp": "",
        "below/public_more.cpp": '#include "below/outer/hidden.hpp"\n#include "below/public.hpp"\n',
        "below/inner/hidden.hpp": '#include "below/public.hpp"\n#include <vector>\n',
        "below/outer/hidden.hpp": '#include "below/inner/hidden.hpp"\n',
        "above/inner/use.cpp": '#include "below/public.hpp"\n#include <torch/torch.h>\n',
        "above/python/module.cpp": "#include <Python.h>\n",
        "above/python/module.hpp": "#include <string>\n",
        "tests/native/b/meeting/test.cpp": '#include "below/inner/hidden.hpp"\n',
        "tool/__init__.py": "def first(): from tool import front\n",
        "tool/front.py": "from tool import _C\nfrom tool.high import y\n",
        "tool/low/x.py": "from tool import _C\n",
        "tool/high/y.py": "from tool.low import x\n",
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
        ("below/inner/up.cpp", '#include "above/inner/use.cpp"', "below may not include above"),
        ("below/inner/torch.cpp", "#include <ATen/ATen.h>", "free of torch"),
        ("below/inner/gone.cpp", '#include "below/gone.hpp"', "does not exist"),
        ("below/inner/bare.cpp", '#include "public.hpp"', "not written from the repository root"),
        ("below/inner/hidden.cpp", '#include "below/outer/hidden.hpp"', "whose folder stands above its own"),
        ("below/private.hpp", "", "below/private.hpp is at the top of below, and no other room includes it"),
        ("below/other.cpp", "", "below/other.cpp is at the top of below, and implements no header there"),
        ("below/public.hpp", '#include "below/inner/hidden.hpp"', "headers include each other in a circle"),
        ("above/inner/deep.cpp", '#include "below/inner/hidden.hpp"', "not a public header of below"),
        ("above/inner/bind.cpp", "#include <pybind11/pybind11.h>", "lies in no folder `python`"),
        ("above/python/use.cpp", "#include <string>", "includes none of Python's headers"),
        ("above/python/use.hpp", "#include <string>", "includes none of Python's headers"),
        ("below/new/file.cpp", "", "below/new/file.cpp is in no room"),
        ("below/inner/deeper/file.hpp", "", "below/inner/deeper/file.hpp is in no room"),
        ("elsewhere/file.h", "", "elsewhere/file.h is in no room"),
        ("file.cc", "", "file.cc is in no room"),
        ("tests/native/other/test.cpp", '#include "below/inner/hidden.hpp"', "for below and its own tests"),
        ("tool/use.py", "import tool.app.main", "tool may not import app"),
        ("tool/use.py", "from tool import app", "tool may not import app"),
        ("tool/use.py", "from .app import main", "tool may not import app"),
        ("tool/low/z.py", "def late(): from tool.front import a", "tool has parts that import each other"),
        ("tool/front.py", "def late(): from tool import first", "tool has parts that import each other"),
    ],
)
def test_what_is_out_of_order_is_found(project, path, text, problem):
    (found,) = project(path, text)
    assert problem in found


def test_an_import_of_a_folder_above_is_found(project):
    found = project("tool/low/x.py", "from tool.high import y")
    assert "tool/low/x.py imports tool.high.y, whose folder stands above its own" in found


def test_a_full_folder_is_found(project):
    for number in range(25):
        problem = project(f"docs/page{number}.md")
        assert problem == []
    assert project("docs/page.md") == ["docs has 26 files of its own; 25 are the most"]
