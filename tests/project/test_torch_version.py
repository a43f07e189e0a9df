"""The supported versions of torch stand in vccl/_torch_version.py. All other places agree with them."""

import re
import subprocess
from pathlib import Path

import pytest
import torch
from toml_files import read_toml

from vccl import _torch_version

ROOT = Path(__file__).resolve().parents[2]
SUPPORTED = _torch_version.SUPPORTED


def read(path: str) -> str:
    return (ROOT / path).read_text()


def test_the_tested_version_is_a_release_of_a_supported_one():
    assert re.fullmatch(r"(\d+\.\d+)\.\d+", _torch_version.TESTED).group(1) in SUPPORTED


def test_pyproject_requires_the_supported_ones():
    """The versions follow one another, so a range from the first to the one after the last says which."""
    major, first = SUPPORTED[0].split(".")
    minors = [int(version.removeprefix(f"{major}.")) for version in SUPPORTED]
    assert minors == list(range(int(first), int(first) + len(minors)))
    requirements = read_toml(read("pyproject.toml"))["project"]["dependencies"]
    assert f"torch>={major}.{first},<{major}.{minors[-1] + 1}" in requirements


def test_make_installs_it():
    commands = subprocess.run(
        ["make", "--dry-run", "--always-make", "install"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"torch=={_torch_version.TESTED}\n" in commands


def test_the_compiled_module_was_built_for_this_one():
    from vccl import _C

    minor = ".".join(torch.__version__.split(".")[:2])
    assert _C.torch_version.startswith(f"{minor}.")
    assert Path(_C.__file__).parent == _torch_version.compiled_for()[minor]


CHOOSER = "csrc_device/torch/torch_version.hpp"
VERSION_MACRO = re.compile(r"\bTORCH_VERSION\w*|\bC10D_BACKEND_HAS_\w+|torch/version\.h|torch/versions/")


def test_each_version_has_a_header():
    found = {path.name for path in (ROOT / "csrc_device" / "torch" / "versions").iterdir()}
    assert found == {f"torch_{minor.replace('.', '_')}.hpp" for minor in _torch_version.SUPPORTED}


def test_the_chooser_takes_each_header_for_its_version():
    chosen = re.findall(
        r"TORCH_VERSION_MINOR == (\d+)\n#include \"csrc_device/torch/versions/torch_2_(\d+)\.hpp\"",
        read(CHOOSER),
    )
    assert [f"2.{minor}" for minor, _ in chosen] == list(_torch_version.SUPPORTED)
    assert all(minor == of_header for minor, of_header in chosen)


def test_no_other_file_in_cpp_has_a_version_of_torch():
    folders = ("base", "csrc_device", "csrc_pg", "examples", "include", "transport", "tests/native")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.[ch]pp")]
    naming = {str(path.relative_to(ROOT)) for path in files if VERSION_MACRO.search(path.read_text())}
    assert naming == {CHOOSER}


@pytest.mark.parametrize(
    ("versions", "found", "is_one"),
    [
        (">=2.12", "2.12.1", True),
        (">=2.12, <2.15", "2.14.1+cpu", True),
        (">=2.12, <2.15", "2.15.0.dev20261101+cpu", False),
        ("<2.14", "2.9.1", True),
        ("==2.13", "2.13.5", True),
        (">2.13", "2.13.5", False),
        ("<=2.13", "2.13.5", True),
    ],
)
def test_ranges_of_versions(versions, found, is_one):
    assert _torch_version.is_one_of(versions, found) is is_one


@pytest.mark.parametrize("versions", ["2.14", ">=2", ">= 2.14.1", "", ">=2.12 <2.15"])
def test_what_names_no_versions(versions):
    with pytest.raises(ValueError, match="names no versions"):
        _torch_version.is_one_of(versions)


@pytest.mark.parametrize(
    "path", ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
)
def test_pages_name_no_other(path):
    """Every "torch 2.x" on a page is a supported version, and every "torch==2.x.y" the tested one."""
    named = re.findall(r"\b[Tt]orch (\d+\.\d+)", read(path))
    assert set(named) <= set(SUPPORTED)
    assert set(re.findall(r"\btorch==(\d+\.\d+\.\d+)", read(path))) <= {_torch_version.TESTED}


# Headers of torch's C++ interface that documentation shows, and that have kept their contents for years.
STABLE = re.compile(
    r"ATen/(ATen|Context|Dispatch|OpMathType|Parallel|TensorOperators)\.h"
    r"|ATen/core/(Generator|List|Tensor|ivalue|stack)\.h"
    r"|ATen/ops/\w+(?<!_native)(?<!_ops)\.h"
    r"|c10/core/(Allocator|CPUAllocator|Device|DeviceGuard|ScalarType|Storage|Stream|StreamGuard)\.h"
    r"|c10/util/(ArrayRef|Exception|FunctionRef|SmallVector)\.h"
    r"|torch/(library|version)\.h"
)


def test_the_chooser_lists_what_another_torch_may_have_moved():
    listed = re.findall(r"<((?:ATen|c10|torch)/[\w/*]+\.h(?:pp)?)>[:,]", read(CHOOSER))
    included = {
        re.sub(r"ATen/ops/\w+?_(native|ops)\.h", r"ATen/ops/*_\1.h", name)
        for folder in ("csrc_device", "csrc_pg", "include")
        for path in (ROOT / folder).rglob("*.[ch]pp")
        if path.parent.name != "versions"
        for name in re.findall(r"#include <((?:ATen|c10|torch)/[^>]+)>", path.read_text())
        if not STABLE.fullmatch(name)
    }
    assert sorted(listed) == sorted(included)
