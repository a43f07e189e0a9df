"""The wheel and the source distribution of `make wheel`, and what an installed wheel can do by itself.

The wheel is installed into an environment that sees what this one has installed, but not this vccl.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from pathlib import Path
from typing import NamedTuple

import filelock
import native_build
import pytest
import torch
from packaging.requirements import Requirement
from toml_files import read_toml

import vccl
from vccl import _torch_version

pytestmark = pytest.mark.daily

ROOT = Path(__file__).resolve().parents[2]
FOLDERS_OF_PRODUCTS = ("build/", "dist/", ".venv/", ".git/")
PRODUCTS = (".so", ".o", ".pyc")


class Distributions(NamedTuple):
    wheel: Path
    source: Path


def call(*command: object, cwd: Path = ROOT) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-10_000:]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Both, built as `make wheel` builds them: from the objects of `make build`, if those are there."""
    folder = tmp_path_factory.mktemp("dist")
    native_build.MODULE_BUILD.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(native_build.MODULE_BUILD / "lock"):
        call(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--wheel", "--outdir", folder)
    (wheel,) = folder.glob("*.whl")
    (source,) = folder.glob("*.tar.gz")
    return Distributions(wheel, source)


def show_installed_packages(folder: Path) -> None:
    """Makes links in `folder` to all that is installed in this environment, except vccl."""
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for path in Path(place).iterdir():
            if "vccl" not in path.name and path.suffix != ".pth":
                (folder / path.name).symlink_to(path)


@pytest.fixture(scope="module")
def installed(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of an environment that the wheel is installed in."""
    venv = tmp_path_factory.mktemp("venv")
    others = tmp_path_factory.mktemp("others")
    call(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    options = ("--no-deps", "--no-index", "--no-compile", "--quiet")
    call(sys.executable, "-m", "pip", "--python", python, "install", *options, distributions.wheel)
    show_installed_packages(others)
    (site_packages,) = venv.glob("lib/python*/site-packages")
    (site_packages / "others.pth").write_text(f"{others}\n")
    return venv / "bin"


@pytest.fixture
def outside(run: Callable[..., str], installed: Path) -> Callable[..., str]:
    """outside("vrun", ...) runs a command of that environment, in an unrelated folder."""

    def outside(command: str, *arguments: object, env: dict[str, str | None] | None = None, **options) -> str:
        unset = dict.fromkeys(("PYTHONPATH", "VIRTUAL_ENV", "TORCH_DEVICE_BACKEND_AUTOLOAD"))
        return run([installed / command, *arguments], env={**unset, **(env or {})}, **options)

    return outside


def test_importing_torch_brings_the_device_of_the_wheel(outside, installed):
    code = "import torch, vccl; print(torch.zeros(2, device='vdev').sum().item(), vccl._C.__file__)"
    total, module = outside("python", "-c", code).split()
    assert total == "0.0"
    assert Path(module).is_relative_to(installed.parent)


def test_vrun_of_the_wheel_runs_the_example(outside):
    output = outside("vrun", "--cards", 2, ROOT / "examples" / "all_reduce.py")
    for rank in range(2):
        assert f"rank {rank} of 2: tensor([3., 3., 3., 3.], device='vdev:{rank}')" in output


def test_pytest_finds_the_plugin_of_the_wheel(outside, tmp_path):
    (tmp_path / "test_sum.py").write_text(
        "import pytest, torch\n"
        "@pytest.mark.ranks(2)\n"
        "def test_sum(ranks):\n"
        "    x = torch.full((1,), ranks.rank + 1.0, device=ranks.device)\n"
        "    torch.distributed.all_reduce(x)\n"
        "    assert x.item() == 3.0\n"
    )
    options = ("-p", "no:cacheprovider", "--rootdir", tmp_path)
    assert "1 passed" in outside("python", "-m", "pytest", *options, tmp_path)


@pytest.mark.parametrize("module", ["vccl", "vccl.bench", "vccl.compare", "vccl.convert", "vccl.launch.vrun"])
def test_modules_of_the_wheel_are_commands(outside, module):
    assert "usage:" in outside("python", "-m", module, "--help")


@pytest.fixture(scope="module")
def built(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which both examples in C++ were built, with CMake, against the installed wheel."""
    folder = tmp_path_factory.mktemp("cpp")
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(examples LANGUAGES CXX)\n"
        + "".join(f"add_subdirectory({ROOT}/examples/{name} {name})\n" for name in ("custom_op", "cpp"))
    )
    python = installed / "python"
    code = "import vccl; print(vccl.cmake_prefix_path)"
    prefix = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    options = (f"-DCMAKE_PREFIX_PATH={prefix.stdout.strip()}", f"-DPython_EXECUTABLE={python}")
    # Not ccache, and not the flags of this project: what a user has.
    environment = ("env", "-u", "CMAKE_CXX_COMPILER_LAUNCHER")
    call(*environment, "cmake", "-S", folder, "-B", folder / "build", *options)
    call("cmake", "--build", folder / "build", "--parallel", 2)
    return folder / "build"


def test_a_program_in_cpp_trains_without_python(built, tmp_path):
    """Two processes, which meet in a file. Nothing of Python is loaded."""
    program = built / "cpp" / "train"
    libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    assert "libvccl.so" in libraries and not re.search("libpython|libtorch_python", libraries)
    ranks = [
        subprocess.Popen(
            [program, str(rank), "2", tmp_path / "meeting"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", outputs[0])]
    assert len(losses) == 4 and losses == sorted(losses, reverse=True)
    assert "rank 1 of 2 is done on vdev:1" in outputs[1]


@pytest.mark.parametrize("pose", [None, "cuda"])
def test_a_custom_operator_passes_its_own_tests(built, outside, pose):
    folder = ROOT / "examples" / "custom_op"
    library = {"SQUARED_RELU": str(built / "custom_op" / "libsquared_relu.so"), "VDEV_POSE": pose}
    options = ("-p", "no:cacheprovider", "--rootdir", folder)
    assert " passed" in outside("python", "-m", "pytest", *options, folder, env=library)
    assert "bias_squared_relu" in outside("python", folder / "bench.py", 1024, env=library)


def test_an_extension_of_torch_is_built_by_load(outside, tmp_path):
    folder = ROOT / "examples"
    environment = {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    output = outside("python", folder / "cpp" / "extension.py", cwd=folder / "custom_op", env=environment)
    assert "tensor([0., 9.], device='vdev:0')" in output


SETUP = """
import setuptools, vccl
from torch.utils.cpp_extension import BuildExtension, CppExtension
extension = CppExtension(
    "mine", ["mine.cpp"], include_dirs=[vccl.include_path], libraries=["vccl"],
    library_dirs=[vccl.library_path], runtime_library_dirs=[vccl.library_path],
)
setuptools.setup(name="mine", ext_modules=[extension], cmdclass={"build_ext": BuildExtension})
"""
MINE = """
#include <Python.h>
#include <vccl/device.hpp>
static PyObject* wait(PyObject*, PyObject*) { vdev::synchronize(0); return PyBool_FromLong(1); }
static PyMethodDef methods[] = {{"wait", wait, METH_NOARGS, nullptr}, {}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "mine", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_mine() { return PyModule_Create(&module); }
"""


def test_an_extension_with_a_setup_py(outside, tmp_path):
    (tmp_path / "setup.py").write_text(SETUP)
    (tmp_path / "mine.cpp").write_text(MINE)
    outside("python", "setup.py", "build_ext", "--inplace", cwd=tmp_path)
    assert outside("python", "-c", "import torch, mine; print(mine.wait())", cwd=tmp_path) == "True\n"


def test_another_torch_gets_an_error_that_says_what_to_do(outside, tmp_path):
    """The other torch is this one under another version."""
    (compiled,) = _torch_version.compiled_for()
    package = tmp_path / "torch"
    package.mkdir()
    for path in Path(torch.__file__).parent.iterdir():
        if path.name not in ("version.py", "__pycache__"):
            (package / path.name).symlink_to(path)
    version = (Path(torch.__file__).parent / "version.py").read_text()
    (package / "version.py").write_text(version.replace(torch.__version__, "2.99.1"))
    works = "import torch; print(torch.ones(2).sum().item(), torch.accelerator.is_available())"
    for code, status in ((works, 0), ("import vccl", 1)):
        output = outside("python", "-c", code, env={"PYTHONPATH": str(tmp_path)}, status=status)
        assert status == 1 or output.endswith("\n2.0 False\n")
        assert f"vccl works with torch {compiled}.x here, and found torch 2.99.1" in output
        assert f"pip install 'torch=={compiled}.*'" in output


def test_a_build_without_torch_says_what_to_do(run, tmp_path):
    """So does a build that pip isolates from what is installed."""
    call(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    cmake = Path(sys.executable).parent / "cmake"
    output = run([cmake, "-S", ROOT, "-B", tmp_path / "build", f"-DPython_EXECUTABLE={python}"], status=1)
    text = " ".join(output.split())
    assert f"vccl is compiled against an installed torch, and {python} has none." in text
    versions = ", ".join(_torch_version.SUPPORTED)
    assert f"Install torch (one of {versions}), and call pip with --no-build-isolation." in text


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of an environment with an editable install, as `pip install -e` makes it."""
    # pip calls this function, and installs the wheel. With its own Python it would compile everything anew.
    code = "import sys; sys.path[:0] = ['.ci']\nimport build_backend as b; b.build_editable(sys.argv[1])"
    wheels = tmp_path_factory.mktemp("wheels")
    with filelock.FileLock(native_build.MODULE_BUILD / "lock"):
        call(sys.executable, "-c", code, wheels)
    (wheel,) = wheels.glob("*.whl")
    venv = tmp_path_factory.mktemp("editable")
    others = tmp_path_factory.mktemp("others")
    call(sys.executable, "-m", "venv", "--without-pip", venv)
    show_installed_packages(others)
    (site_packages,) = venv.glob("lib/python*/site-packages")
    (site_packages / "others.pth").write_text(f"{others}\n")
    python = venv / "bin" / "python"
    options = ("--no-deps", "--no-index", "--no-compile", "--quiet")
    call(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel)
    return venv / "bin"


def test_an_editable_install_brings_the_package_alone(run, editable, tmp_path):
    """pytest does not warn of it, and folders of the sources cannot be imported by their names."""
    (tmp_path / "test_one.py").write_text(
        "import importlib.util, vccl, torch\n"
        "def test_one():\n"
        "    assert torch.ones(1, device='vdev').item() == 1\n"
        "    for name in ('launch', 'testing', 'transport', 'csrc_pg', 'build_backend'):\n"
        "        assert importlib.util.find_spec(name) is None\n"
    )
    options = ("-p", "no:cacheprovider", "--rootdir", tmp_path)
    output = run(
        [editable / "python", "-m", "pytest", *options, tmp_path],
        env=dict.fromkeys(("PYTHONPATH", "VIRTUAL_ENV", "TORCH_DEVICE_BACKEND_AUTOLOAD")),
    )
    assert "1 passed" in output and "warning" not in output.lower()


def test_the_wheel_has_what_the_package_needs(distributions):
    with zipfile.ZipFile(distributions.wheel) as archive:
        names = archive.namelist()
        about = f"vccl-{vccl.__version__}.dist-info"
        metadata = message_from_bytes(archive.read(f"{about}/METADATA"))
    settings = read_toml((ROOT / "pyproject.toml").read_text())
    sources = {
        Path(folder, file).relative_to(ROOT).as_posix()
        for package in settings["tool"]["scikit-build"]["wheel"]["packages"]
        for folder, _, files in os.walk(ROOT / package, followlinks=True)
        if Path(folder).name != "__pycache__"
        for file in files
    }
    (minor,) = _torch_version.compiled_for()
    folder = f"vccl/_torch_{minor.replace('.', '_')}"
    compiled = {f"{folder}/_C{sysconfig.get_config_var('EXT_SUFFIX')}", f"{folder}/libvccl.so"}
    for_cpp = {f"vccl/include/vccl/{name}.hpp" for name in ("device", "group", "kernels", "version")}
    for_cpp.add("vccl/share/cmake/vccl/vcclConfig.cmake")
    shipped = {name for name in names if not name.startswith(about)}
    assert shipped == sources | compiled | for_cpp
    assert "vccl/py.typed" in shipped
    assert f"{about}/licenses/LICENSE" in names
    required = {Requirement(text) for text in metadata.get_all("Requires-Dist")}
    assert Requirement(settings["project"]["dependencies"][0]) in required


def test_the_source_distribution_has_every_file_and_no_product(distributions):
    with tarfile.open(distributions.source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not {name for name in names if name.startswith(FOLDERS_OF_PRODUCTS) or name.endswith(PRODUCTS)}
    listed = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True)
    if listed.returncode or not listed.stdout:
        pytest.skip("not a git checkout")
    files = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    links = {name for name in listed.stdout.splitlines() if (ROOT / name).is_dir()}
    assert links == {"vccl/launch"}
    # The archive has a copy of the folder in the place of the link.
    behind = {f"{link}/{file.name}" for link in links for file in (ROOT / link).glob("*.py")}
    assert files | behind <= names
