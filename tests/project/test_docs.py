"""The documentation says what the sources say."""

import ast
import json
import re
import runpy
from pathlib import Path

import pytest

from vccl_entry.client import DEFAULT_KEEP_SECONDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "tests/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
ROOMS = json.loads((ROOT / "rooms.json").read_text())
FOLDERS = {".ci", "docs", "examples", "tests", *(room.split("/")[0] for room in ROOMS)}
FILES = [path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
READERS = [
    ROOT / "csrc_device" / "runtime" / "cards" / "environment.cpp",
    ROOT / "transport" / "variables.cpp",
    ROOT / "vccl_entry" / "client.py",
    ROOT / "vccl_entry" / "pytest_plugin.py",
    ROOT / "vccl" / "testing" / "schedules.py",
    ROOT / "launch" / "schedules.py",
    ROOT / "vccl" / "sanitizer" / "settings.py",
    ROOT / "vccl" / "faults" / "environment.py",
    ROOT / "vccl" / "_triton" / "launches.py",
]
SOURCES = [
    path
    for folder in {room.split("/")[0] for room in ROOMS}
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".cpp", ".hpp", ".py")
]
VARIABLE = re.compile(r"\b(?:VDEV|VCCL)_[A-Z][A-Z_]+\b")


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def test_the_drawings_are_what_the_script_makes_of_the_rooms():
    inside = ROOT / "docs" / "inside"
    made = runpy.run_path(str(inside / "drawings.py"))["drawings"]()
    for name, svg in made.items():
        assert (inside / name).read_text() == svg, f"{name} is old: run python docs/inside/drawings.py"
        assert f"]({name})" in page("inside/architecture.md")
    assert sorted(made) == sorted(path.name for path in inside.glob("*.svg"))


def test_every_variable_is_on_the_page_and_read_in_one_of_the_files_for_it():
    read = {name for path in READERS for name in re.findall(r'"((?:VDEV|VCCL)_[A-Z_]+)"', path.read_text())}
    documented = re.findall(r"^\| `([A-Z_]+)` \|", page("environment.md"), re.MULTILINE)
    documented = [name for name in documented if VARIABLE.fullmatch(name)]
    assert read and set(documented) == read
    assert len(documented) == len(set(documented))


def test_no_other_cpp_file_reads_the_environment():
    reading = re.compile(r"\b(?:secure_)?getenv\s*\(|(?<!/)\benviron\b")
    found = {path for path in SOURCES if path.suffix != ".py" and reading.search(path.read_text())}
    assert found == {path for path in READERS if path.suffix == ".cpp"}


def variables_read_by(source: str) -> set[str]:
    """Returns the variables of vccl that Python code reads by name, with os.environ or os.getenv.

    A name may stand in a variable of the module. `setdefault()` counts as setting.
    """
    tree = ast.parse(source)
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    keys: list[ast.AST] = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="get" | "pop"), args=[key, *_]) if is_environ(
                owner
            ):
                keys.append(key)
            case ast.Call(func=ast.Attribute(attr="getenv") | ast.Name(id="getenv"), args=[key, *_]):
                keys.append(key)
            case ast.Subscript(value=owner, slice=key, ctx=ast.Load()) if is_environ(owner):
                keys.append(key)
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[owner]) if is_environ(
                owner
            ):
                keys.append(key)
    values = [constants.get(key.id) if isinstance(key, ast.Name) else key for key in keys]
    names = {value.value for value in values if isinstance(value, ast.Constant)}
    return {name for name in names if isinstance(name, str) and VARIABLE.fullmatch(name)}


def is_environ(node: ast.AST) -> bool:
    return getattr(node, "attr", getattr(node, "id", "")) in ("environ", "environb")


@pytest.mark.parametrize(
    "code",
    [
        'os.environ["VDEV_NEW"]',
        'environ.get("VDEV_NEW", "")',
        'os.getenv("VDEV_NEW")',
        '"VDEV_NEW" in os.environ',
        'NAME = "VDEV_NEW"\nif NAME not in os.environ: pass',
    ],
)
def test_a_variable_that_is_read_is_found(code):
    assert variables_read_by(code) == {"VDEV_NEW"}


@pytest.mark.parametrize(
    "code", ['os.environ["VDEV_NEW"] = "1"', 'del os.environ["VDEV_NEW"]', 'os.environ["HOME"]']
)
def test_a_variable_that_is_set_is_not(code):
    assert variables_read_by(code) == set()


def test_the_page_names_every_python_file_that_reads_a_variable():
    rows = re.findall(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", page("environment.md"), re.MULTILINE)
    found = [
        (path.relative_to(ROOT).as_posix(), name)
        for path in SOURCES
        if path.suffix == ".py"
        for name in variables_read_by(path.read_text())
    ]
    assert sorted(rows) == sorted(found)


def test_a_variable_has_one_short_line_in_the_tables():
    rows = re.findall(r"^\| `[A-Z].*$", page("environment.md"), re.MULTILINE)
    assert [row for row in rows if len(row) > 180] == []


def test_every_default_that_the_page_gives_is_the_one_in_the_code():
    header = (ROOT / "csrc_device" / "runtime" / "environment.hpp").read_text()
    count = re.search(r"int device_count = (\d+);", header).group(1)
    assert f"| `VDEV_DEVICE_COUNT` | `{count}` |" in page("environment.md")
    assert f"| `VCCL_KEEP_SECONDS` | `{DEFAULT_KEEP_SECONDS}` |" in page("environment.md")


def test_every_error_has_its_section():
    enum = re.search(
        r"enum class ErrorCode[^{]*{(.*?)};", (ROOT / "transport" / "error.hpp").read_text(), re.DOTALL
    )
    codes = re.findall(r"^\s*(\w+),", enum.group(1), re.MULTILINE)
    assert re.findall(r"^### (\w+)$", page("errors.md"), re.MULTILINE) == codes


def test_the_readme_shows_the_example_as_it_is():
    """From the first import on: the README leaves the docstring out."""
    example = (ROOT / "examples" / "all_reduce.py").read_text()
    code = example[example.index("import os") :]
    assert code.replace("\n\n", "\n") in (ROOT / "README.md").read_text().replace("\n\n", "\n")


def test_links_lead_somewhere():
    for path in PAGES:
        for file, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", prose(path)):
            target = path.parent / file if file else path
            assert target.exists(), f"{path.name} links to {file}"
            if anchor and target.suffix == ".md":
                assert anchor in anchors(target), f"{path.name} links to {file}#{anchor}"


def links(path: Path) -> set[Path]:
    """Returns the pages to which a page links, but itself."""
    named = re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]+)?\)", prose(path))
    return {(path.parent / name).resolve() for name in named} - {path}


def test_the_index_leads_to_every_page():
    index = ROOT / "docs" / "README.md"
    assert links(index) >= set(PAGES) - {index}


def test_the_readme_leads_to_the_index_and_to_few_pages():
    pages = {path for path in links(ROOT / "README.md") if path.is_relative_to(ROOT / "docs")}
    assert ROOT / "docs" / "README.md" in pages
    assert len(pages) <= 6


@pytest.mark.parametrize(("name", "folder"), [("extending.md", "custom_op"), ("cpp.md", "cpp")])
def test_pages_show_the_examples_as_they_are(name, folder):
    """Every piece of C++, Python and CMake on the page stands in a file that a test builds and runs."""
    files = [path.read_text() for path in (ROOT / "examples" / folder).iterdir() if path.is_file()]
    pieces = re.findall(r"^```(?:cpp|python|cmake)\n(.*?)^```$", page(name), re.MULTILINE | re.DOTALL)
    assert len(pieces) >= 3
    for piece in pieces:
        assert any(piece in file for file in files), f"docs/{name} shows what no file has:\n{piece}"


def test_the_page_leads_through_the_whole_operator():
    """Whoever copies the steps of docs/extending.md one after the other has the operator's source."""
    shown = {
        line
        for piece in re.findall(r"^```cpp\n(.*?)^```$", page("extending.md"), re.M | re.S)
        for line in piece.splitlines()
    }
    source = (ROOT / "examples" / "custom_op" / "squared_relu.cpp").read_text().partition("#include")
    assert [line for line in "".join(source[1:]).splitlines() if line and line not in shown] == []


def prose(path: Path) -> str:
    """Returns a page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_files_that_a_page_names_exist():
    """Pages name a file from the top of the repository, or by the end of its path: `ring/ring.hpp`."""
    suffixes = "cpp|hpp|py|c|md|json|toml|txt"
    for path in PAGES:
        for name in re.findall(rf"`([\w./]+/[\w.]+\.(?:{suffixes}))`", prose(path)):
            found = [file for file in FILES if f"/{file}".endswith(f"/{name}")]
            assert found, f"{path.name} names {name}, which does not exist"


def test_the_tables_of_starting_and_testing_are_complete():
    """The two pages name every file that starts ranks or runs tests on them."""
    named = re.findall(r"`([\w/]+\.py)`", page("starting.md") + page("testing.md"))
    packages = ("vccl.launch", "vccl.testing", "vccl_entry")
    folders = [name for name, room in ROOMS.items() if room.get("package") in packages]
    assert len(folders) == len(packages)
    for path in (path for folder in folders for path in (ROOT / folder).glob("[!_]*.py")):
        assert any(path.as_posix().endswith(f"/{name}") for name in named), f"no page names {path}"


def test_files_that_a_comment_names_exist():
    """Files of other projects stand in angle brackets."""
    for path in SOURCES:
        code = re.sub(r"^ *#include.*", "", path.read_text(), flags=re.MULTILINE)
        for name in re.findall(r"(?<![\w/.*{}<-])([\w/]+\.[ch]pp)\b", code):
            found = [file for file in FILES if f"/{file}".endswith(f"/{name}")]
            assert found, f"{path.relative_to(ROOT)} names {name}, which does not exist"


@pytest.mark.parametrize(
    "name", ["inside/architecture.md", "inside/algorithms.md", "inside/performance.md", "security.md"]
)
def test_types_and_functions_that_a_page_names_exist(name):
    """Checks the last part of `Type`, `Type::method`, `function()` and the like."""
    sources = [*SOURCES, *(ROOT / "tests").rglob("*.py")]
    words = {word for path in sources for word in re.findall(r"\w+", path.read_text())}
    named = re.findall(r"`(?:\w+(?:::|\.))*([A-Za-z_]\w*)(?:\([^`]*\))?`", prose(ROOT / "docs" / name))
    assert [word for word in named if word not in words] == []


@pytest.mark.parametrize(
    ("name", "least"),
    [("CONTRIBUTING.md", 25), ("docs/inside/architecture.md", 20)],
    ids=lambda value: str(value),
)
def test_tables_of_files_name_what_is_there(name, least):
    """Checks rows with a file and a name in it. A method counts as C++ defines it: `Type::method`."""
    rows = re.findall(r"^\|.*?`([\w./]+/[\w.]+)` \| `([^`]+)` \|", (ROOT / name).read_text(), re.MULTILINE)
    assert len(rows) >= least
    for path, symbol in rows:
        assert (ROOT / path).is_file(), f"{name}: there is no {path}"
        found = re.search(rf"(?<!\w){re.escape(symbol)}", (ROOT / path).read_text())
        assert found, f"{name}: {path} has no {symbol}"


def test_every_row_about_files_is_checked():
    """A row whose file or name is not written as the others are would not be looked at."""
    for name in ("CONTRIBUTING.md", "docs/inside/architecture.md"):
        text = (ROOT / name).read_text()
        for table in re.findall(r"^\|[^\n]*\bfile \|[^\n]*\n\|[-|]+\n((?:\|[^\n]*\n)+)", text, re.MULTILINE):
            for row in table.splitlines():
                assert re.match(r"^\|.*?`[\w./]+/[\w.]+` \| `[^`]+` \|", row), f"{name}: {row}"
