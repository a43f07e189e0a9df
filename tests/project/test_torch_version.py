"""The supported versions of torch stand in vccl/_torch_version.py. All other places agree with them."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import torch

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
    requirements = tomllib.loads(read("pyproject.toml"))["project"]["dependencies"]
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


@pytest.mark.parametrize("version", SUPPORTED)
def test_the_header_of_a_version_accepts_no_other(version):
    major, minor = version.split(".")
    text = read(f"csrc_device/torch/versions/torch_{major}_{minor}.hpp")
    assert f"TORCH_VERSION_MAJOR != {major} || TORCH_VERSION_MINOR != {minor}\n" in text


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


def test_the_header_lists_what_another_torch_may_have_moved():
    major, minor = SUPPORTED[-1].split(".")
    header = ROOT / "csrc_device" / "torch" / "versions" / f"torch_{major}_{minor}.hpp"
    listed = re.findall(r"<((?:ATen|c10|torch)/[\w/*]+\.h(?:pp)?)>[:,]", header.read_text())
    included = {
        re.sub(r"ATen/ops/\w+?_(native|ops)\.h", r"ATen/ops/*_\1.h", name)
        for folder in ("csrc_device", "csrc_pg", "include")
        for path in (ROOT / folder).rglob("*.[ch]pp")
        for name in re.findall(r"#include <((?:ATen|c10|torch)/[^>]+)>", path.read_text())
        if not STABLE.fullmatch(name)
    }
    assert sorted(listed) == sorted(included)
