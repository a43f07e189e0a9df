"""What the installation promises: entry points, the place of every package, and a tidy top level."""

import ctypes
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from toml_files import read_toml

import vccl
from vccl import _C, launch

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    ".ci",
    ".github",
    "base",
    "csrc_device",
    "csrc_pg",
    "diagnosis",
    "docs",
    "vccl_entry",
    "examples",
    "faults",
    "include",
    "launch",
    "tests",
    "recorder",
    "sanitizer",
    "transport",
    "vccl",
}


def test_torch_finds_the_backend_by_its_entry_point():
    found = {entry.name: entry.value for entry in metadata.entry_points(group="torch.backends")}
    assert found["vccl"] == "vccl_entry.torch_backend:autoload"


def test_vrun_is_a_command():
    found = {entry.name: entry.value for entry in metadata.entry_points(group="console_scripts")}
    assert found["vrun"] == "vccl_entry.vrun:command"


def test_importing_torch_brings_the_device(run):
    code = "import torch; print(torch.ones(2, device='vdev').sum().item(), torch.vdev.is_available())"
    assert run([sys.executable, "-c", code], env={"TORCH_DEVICE_BACKEND_AUTOLOAD": None}) == "2.0 True\n"


def test_launch_is_inside_the_package(run):
    assert Path(launch.__file__).parent in (ROOT / "launch", Path(vccl.__file__).parent / "launch")
    # -I: without the current folder and PYTHONPATH.
    code = "from importlib.util import find_spec; print(find_spec('launch'), find_spec('transport'))"
    assert run([sys.executable, "-I", "-c", code]) == "None None\n"


def test_version_and_requirements():
    about = metadata.metadata("vccl")
    assert about["Version"] == vccl.__version__
    assert about["License-Expression"] == "MIT"
    assert any(text.startswith("torch") for text in about.get_all("Requires-Dist"))


def test_the_citation_and_the_changes_have_the_version():
    assert f"\nversion: {vccl.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    versions = re.findall(r"^## (\d\S*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == vccl.__version__


def test_programs_in_cpp_find_the_same_version():
    """The macros of <vccl/version.hpp> have it when a program is compiled, and the library when it runs."""
    project = read_toml((ROOT / "pyproject.toml").read_text())["project"]
    header = (ROOT / "include" / "vccl" / "version.hpp").read_text()
    numbers = re.findall(r"^#define VCCL_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", header, re.MULTILINE)
    assert ".".join(numbers) == project["version"] == vccl.__version__
    major, minor, patch = map(int, numbers)
    library = ctypes.CDLL(str(Path(_C.__file__).with_name("libvccl.so")))
    assert library._ZN4vccl7versionEv() == major * 10000 + minor * 100 + patch  # int vccl::version()


def test_threads_variables_need_no_room_that_other_libraries_take():
    # glibc keeps 1.6 KiB for libraries that are loaded late and have thread-local variables of the model
    # initial-exec. Where torch's libraries for GPUs had taken it, loading libvccl.so failed: "cannot allocate
    # memory in static TLS block".
    for library in Path(_C.__file__).parent.glob("*.so"):
        told = subprocess.run(["readelf", "--dynamic", library], capture_output=True, text=True, check=True)
        assert "(NEEDED)" in told.stdout
        assert "STATIC_TLS" not in told.stdout, library


def test_top_level():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True)
    if listed.returncode or not listed.stdout:
        pytest.skip("not a git checkout")
    assert {path.split("/")[0] for path in listed.stdout.splitlines() if "/" in path} <= FOLDERS


def test_a_libcrypto_beside_python_is_found(tmp_path):
    from vccl._libraries import find_libcrypto

    assert find_libcrypto(str(tmp_path)) is None
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libcrypto.so").touch()  # what a linker takes, without the version
    assert find_libcrypto(str(tmp_path)) is None
    for version in ("1.1", "3"):
        (tmp_path / "lib" / f"libcrypto.so.{version}").touch()
    assert find_libcrypto(str(tmp_path)) == tmp_path / "lib" / "libcrypto.so.3"
