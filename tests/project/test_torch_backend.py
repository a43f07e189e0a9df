"""What an installed vccl does to ``import torch``: cards where they are wanted, and never a failure.

A torch that was built with CUDA is this one with another ``version.py`` where this one was built without.
A GPU is a stub of the library that counts them.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch_build import without_cuda

# Nothing of the environment of the tests asks for cards.
UNASKED = dict.fromkeys([name for name in os.environ if name.startswith("VDEV_")])
UNASKED |= dict.fromkeys(("TORCH_DEVICE_BACKEND_AUTOLOAD", "VCCL_SHARE_CPU", "CUDA_VISIBLE_DEVICES"))
ACCELERATOR = (
    "a = torch.accelerator.current_accelerator(); print(a and a.type, torch.accelerator.is_available())"
)
VRUN = Path(sys.executable).parent / "vrun"
LOADED = "import sys; print('vccl' in sys.modules, hasattr(torch, 'vdev'))"


@pytest.fixture
def python(run: Callable[..., str]) -> Callable[..., str]:
    """python(code, status=0, **environment) returns what a new interpreter writes to stdout and stderr."""

    def python(code: str, status: int = 0, options: tuple[str, ...] = (), **environment: str | None) -> str:
        return run([sys.executable, *options, "-c", code], status=status, env={**UNASKED, **environment})

    return python


@pytest.fixture
def built_with_cuda(tmp_path: Path) -> dict[str, str]:
    """The environment of a process whose torch says that it was built with CUDA."""
    if torch.version.cuda:
        return {}
    folder = tmp_path / "with_cuda"
    package = folder / "torch"
    package.mkdir(parents=True)
    original = Path(torch.__file__).parent
    for path in original.iterdir():
        if path.name not in ("version.py", "__pycache__"):
            (package / path.name).symlink_to(path)
    version = (original / "version.py").read_text() + "\ncuda = '13.0'\n"
    (package / "version.py").write_text(version)
    return {"PYTHONPATH": str(folder)}


@pytest.fixture
def gpus(tmp_path: Path) -> Callable[[int], dict[str, str]]:
    """gpus(n) returns the environment of a process whose driver counts n GPUs."""

    def gpus(count: int) -> dict[str, str]:
        folder = tmp_path / f"driver_{count}"
        folder.mkdir()
        source = folder / "nvml.c"
        source.write_text(
            "int nvmlInit(void) { return 0; }\n"
            f"int nvmlDeviceGetCount_v2(int* count) {{ *count = {count}; return 0; }}\n"
        )
        subprocess.run(["cc", "-shared", "-fPIC", source, "-o", folder / "libnvidia-ml.so.1"], check=True)
        return {"LD_LIBRARY_PATH": str(folder)}

    return gpus


def test_cards_are_the_accelerator_of_a_machine_without_a_gpu(python, built_with_cuda):
    assert python(f"import torch; {ACCELERATOR}; {LOADED}") == "vdev True\nTrue True\n"
    assert python(f"import torch; {ACCELERATOR}; {LOADED}", **built_with_cuda) == "vdev True\nTrue True\n"


def test_a_machine_with_a_gpu_keeps_it(python, built_with_cuda, gpus):
    machine = {**built_with_cuda, **gpus(1)}
    kept = python(f"import torch; {LOADED}; {ACCELERATOR}", **machine)
    # A build with CUDA has it as its accelerator, whether or not there is a driver.
    cuda = "cuda False" if torch.version.cuda else "None False"
    assert kept == f"False False\n{cuda}\n"


def test_a_gpu_that_the_process_does_not_see_is_none(python, built_with_cuda, gpus):
    assert python(f"import torch; {ACCELERATOR}", **built_with_cuda, **gpus(0)) == "vdev True\n"
    hidden = {**gpus(2), "CUDA_VISIBLE_DEVICES": ""}
    assert python(f"import torch; {ACCELERATOR}", **built_with_cuda, **hidden) == "vdev True\n"


def test_a_gpu_means_nothing_to_a_torch_without_cuda(python, gpus):
    if torch.version.cuda:
        pytest.skip("this torch was built with CUDA")
    assert python(f"import torch; {ACCELERATOR}", **gpus(1)) == "vdev True\n"


@pytest.mark.parametrize("variable", ["VDEV_DEVICE_COUNT", "VDEV_VISIBLE_DEVICES", "VDEV_MEMORY"])
def test_a_variable_asks_for_cards_beside_a_gpu(python, built_with_cuda, gpus, variable):
    value = {"VDEV_MEMORY": "1G"}.get(variable, "1")
    machine = {**built_with_cuda, **gpus(1), variable: value}
    assert python(f"import torch; {ACCELERATOR}; {LOADED}", **machine) == "vdev True\nTrue True\n"


@pytest.mark.parametrize("first", ["", "import torch; "])
def test_an_import_asks_for_cards_beside_a_gpu(python, built_with_cuda, gpus, first):
    machine = {**built_with_cuda, **gpus(1)}
    code = f"{first}import vccl; import torch; {ACCELERATOR}; print(torch.ones(2, device='vdev').tolist())"
    assert python(code, **machine) == "vdev True\n[1.0, 1.0]\n"


@pytest.mark.parametrize("options", [(), ("--no-preload",)])
def test_vrun_asks_for_cards_beside_a_gpu(run, tmp_path, built_with_cuda, gpus, options):
    script = tmp_path / "script.py"
    script.write_text("import torch\nprint(torch.ones(2, device='vdev').sum().item())\n")
    command = [VRUN, "--cards", "1", *options, script]
    assert "2.0" in run(command, env={**UNASKED, **built_with_cuda, **gpus(1)})


def test_marked_tests_have_cards_beside_a_gpu(run, tmp_path, built_with_cuda, gpus):
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_it.py").write_text(
        "import pytest, torch\n"
        "@pytest.mark.ranks(1)\n"
        "def test_on_a_rank(ranks):\n"
        "    assert torch.accelerator.current_accelerator().type == 'vdev'\n"
        "    assert torch.ones(1, device=ranks.device).item() == 1\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", folder, folder]
    assert "1 passed" in run(command, env={**UNASKED, **built_with_cuda, **gpus(1)})


POSE = {"VDEV_POSE": "cuda"}


def test_a_torch_with_cuda_refuses_the_pose_in_one_line(python, built_with_cuda):
    output = python("import torch; print('imported')", status=1, **built_with_cuda, **POSE)
    (line,) = output.splitlines()
    assert line.startswith("vccl: VDEV_POSE=cuda: this torch (") and "was built with CUDA" in line
    last = python("import vccl", status=1, **built_with_cuda, **POSE).splitlines()[-1]
    assert "VDEV_POSE=cuda: this torch (" in last and "was built with CUDA" in last


@pytest.mark.parametrize(
    ("options", "environment"), [(("--as-cuda",), {}), ((), POSE), (("--as-cuda", "--no-preload"), {})]
)
def test_vrun_refuses_the_pose_in_one_line(run, tmp_path, built_with_cuda, options, environment):
    script = tmp_path / "script.py"
    script.write_text("print('a rank has started')\n")
    command = [VRUN, *options, script]
    output = run(command, status=1, env={**UNASKED, **built_with_cuda, **environment})
    (line,) = output.splitlines()
    assert line.startswith("vrun: VDEV_POSE=cuda: this torch (") and "was built with CUDA" in line


USABLE = "assert torch.ones(2).add(1).sum() == 4; print(torch.accelerator.is_available())"


@pytest.mark.daily
def test_a_bad_variable_costs_the_cards_alone(python):
    """It is found after torch has learnt the name of the device, which torch cannot forget."""
    code = f"import torch; {USABLE}"
    for options in ((), ("-W", "error")):
        line, available = python(code, options=options, VCCL_SHARE_CPU="yes").splitlines()
        assert line.startswith("vccl: there are no virtual cards in this process: ValueError: ")
        assert 'VCCL_SHARE_CPU is "yes"' in line
        assert available == "False"
    assert python(f"import sys; sys.stderr.close(); {code}", VCCL_SHARE_CPU="yes") == "False\n"
    asks = "import torch\ntry: import vccl\nexcept ImportError as error: print(error)"
    assert (
        python(asks, VCCL_SHARE_CPU="yes")
        .splitlines()[-1]
        .startswith('vccl could not add its cards to torch: VCCL_SHARE_CPU is "yes"')
    )
    uses = "import torch; torch.ones(1, device='vdev')"
    told = python(uses, status=1, VCCL_SHARE_CPU="yes").splitlines()[-1]
    assert "There are no vdev cards, because vccl could not be loaded into torch" in told


@pytest.mark.parametrize("version", ["2.0.1", "2.99.0.dev20261101+cpu"])
def test_another_torch_has_no_cards(python, version):
    later = "from vccl_entry.torch_backend import autoload; autoload()"
    code = f"import torch; torch.__version__ = '{version}'; {later}; {USABLE}; {LOADED}"
    output = python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").splitlines()
    assert output[0].startswith("vccl: ") and "vccl works with torch 2." in output[0]
    assert f" here, and found torch {version}" in output[0]
    assert output[1:] == ["False", "False False"]


BROKEN = {
    "missing": "import sys; sys.modules['vccl._C'] = None",
    "unloadable": """
import importlib.machinery
def fail(self, spec): raise ImportError("undefined symbol: _ZN2at4_ops3addE\\nsecond line")
importlib.machinery.ExtensionFileLoader.create_module = fail
""",
    "of another kind": """
import importlib.machinery
def fail(self, module): raise TypeError("nobody expects this")
importlib.machinery.ExtensionFileLoader.exec_module = fail
""",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_compiled_module_that_is_broken_has_no_cards(python, kind):
    later = "from vccl_entry.torch_backend import autoload; autoload()"
    code = f"import torch\n{BROKEN[kind]}\n{later}\n{USABLE}; {LOADED}"
    line, *others = python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").splitlines()
    assert line.startswith("vccl: there are no virtual cards in this process: ")
    assert others == ["False", "False False"]


CLASHES = {
    "a guard": (
        "#include <c10/core/impl/FakeGuardImpl.h>\n"
        "static c10::impl::FakeGuardImpl<c10::DeviceType::PrivateUse1> guard;\n"
        "static c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::PrivateUse1, &guard);\n",
        "has a guard, because another library has registered that device",
    ),
    "a timer": (
        "#include <torch/csrc/distributed/c10d/reducer_timer.hpp>\n"
        "static const bool registered = [] {\n"
        "  c10d::TimerRegistry()->Register(c10::DeviceType::PrivateUse1,\n"
        "      [](c10::Device) { return std::unique_ptr<c10d::Timer>(); });\n"
        "  return true;\n"
        "}();\n",
        "torch has a timer of DDP for the device privateuseone already",
    ),
    "metadata": (
        "#include <torch/csrc/jit/serialization/pickler_helper.h>\n"
        "static void nothing(const at::Tensor&, std::unordered_map<std::string, bool>&) {}\n"
        "static const bool registered = [] {\n"
        "  torch::jit::TensorBackendMetaRegistry(c10::DeviceType::PrivateUse1, &nothing, &nothing);\n"
        "  return true;\n"
        "}();\n",
        "has been registered",
    ),
    "operators": (
        '#include <torch/library.h>\nTORCH_LIBRARY(vccl, m) { m.def("mine() -> ()"); }\n',
        "namespace vccl",
    ),
}


@pytest.fixture
def library(tmp_path: Path) -> Callable[[str], Path]:
    """library(source) compiles a library in C++ that uses torch."""

    def library(source: str) -> Path:
        folder = Path(torch.__file__).parent
        (tmp_path / "other.cpp").write_text(source)
        includes = [f"-I{folder / part}" for part in ("include", "include/torch/csrc/api/include")]
        command = [
            "c++",
            "-std=c++20",
            "-O0",
            "-shared",
            "-fPIC",
            "-DUSE_DISTRIBUTED",
            "-DUSE_C10D",
            *includes,
        ]
        libraries = [f"-L{folder / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch"]
        made = tmp_path / "libother.so"
        subprocess.run([*command, tmp_path / "other.cpp", *libraries, "-o", made], check=True)
        return made

    return library


@pytest.mark.daily
@pytest.mark.parametrize("what", CLASHES)
def test_what_another_library_has_registered_costs_the_cards_alone(python, library, what):
    source, told = CLASHES[what]
    code = (
        f"import torch, ctypes; ctypes.CDLL({str(library(source))!r})\n"
        "from vccl_entry.torch_backend import autoload\n"
        f"autoload()\n{USABLE}; {LOADED}\n"
        "try: import vccl\n"
        "except ImportError as error: print(error)\n"
    )
    output = python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").splitlines()
    assert output[0].startswith("vccl: there are no virtual cards in this process: ImportError: ")
    assert told in output[0]
    assert output[1:3] == ["False", "False False"]
    assert told in output[3]


def test_a_device_of_another_extension_stays(python):
    code = (
        "import torch; torch.utils.rename_privateuse1_backend('npu')\n"
        "from vccl_entry.torch_backend import autoload\n"
        f"autoload()\n{LOADED}; print(torch.device('npu').type)\n"
    )
    line, *others = python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").splitlines()
    assert "torch has room for one device of an extension, and in this process that is npu" in line
    assert others == ["False False", "npu"]


SETTINGS_OF_ANOTHER = """
#include <c10/core/AllocatorConfig.h>
extern "C" { int calls = 0; }
static const c10::CachingAllocator::DeviceConfigParserHookRegistry registered(
    [](const std::string&) { ++calls; }, {"throw_on_cudamalloc_oom", "backend"});
"""


@pytest.mark.daily
@without_cuda
def test_settings_of_allocators_that_another_device_has_registered(python, library):
    """As a torch that was built with CUDA has them. Both devices get what the program sets."""
    code = f"""
import ctypes, torch
other = ctypes.CDLL({str(library(SETTINGS_OF_ANOTHER))!r})
import vccl
def calls(): return ctypes.c_int.in_dll(other, "calls").value
set_them = torch._C._accelerator_setAllocatorSettings
before = calls()
set_them("backend:cudaMallocAsync,per_process_memory_fraction:0.5")  # no card is used
assert calls() == before + 1
set_them("backend:cudaMallocAsync,max_split_size_mb:30")
torch.ones(1, device="vdev")
assert torch.vdev.memory_stats()["max_split_size"] == 30 << 20
set_them("throw_on_cudamalloc_oom:True,max_split_size_mb:40")
assert calls() == before + 3
assert torch.vdev.memory_stats()["max_split_size"] == 40 << 20
for refused in ("per_process_memory_fraction:0.5", "no_such_setting:1"):
    try: set_them(refused)
    except ValueError: pass
    else: raise AssertionError(refused)
"""
    python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
