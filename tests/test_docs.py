"""The documentation says what the sources say."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READERS = [ROOT / "csrc_device" / "runtime" / "environment.cpp", ROOT / "transport" / "environment.cpp"]
SOURCES = [
    path
    for folder in ("csrc_device", "csrc_pg", "transport", "vccl", "launch")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".cpp", ".hpp", ".py")
]
VARIABLE = re.compile(r"\b(?:VDEV|VCCL)_[A-Z][A-Z_]+\b")


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def test_every_variable_is_on_the_page_and_read_in_one_of_two_files():
    read = {name for path in READERS for name in re.findall(r'"((?:VDEV|VCCL)_[A-Z_]+)"', path.read_text())}
    documented = re.findall(r"^\| `([A-Z_]+)` \|", page("environment.md"), re.MULTILINE)
    documented = [name for name in documented if VARIABLE.fullmatch(name)]
    assert read and set(documented) == read
    assert len(documented) == len(set(documented))


def test_nobody_else_reads_the_environment():
    reading = re.compile(r"\b(?:secure_)?getenv\s*\(")
    found = [str(path.relative_to(ROOT)) for path in SOURCES if reading.search(path.read_text())]
    assert sorted(found) == sorted(str(path.relative_to(ROOT)) for path in READERS)


def test_every_default_that_the_page_gives_is_the_one_in_the_code():
    header = (ROOT / "csrc_device" / "runtime" / "environment.hpp").read_text()
    count = re.search(r"int device_count = (\d+);", header).group(1)
    assert f"| `VDEV_DEVICE_COUNT` | `{count}` |" in page("environment.md")


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
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
