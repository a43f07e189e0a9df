"""What importing does, and what it leaves undone."""

import pathlib

import pytest
from toml_files import read_toml

import vccl

STATE = """
import os
def threads(): return len(os.listdir("/proc/self/task"))
def memfds():
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try: links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError: pass
    return [link for link in links if "memfd" in link]
"""


def test_import_without_autoload(run_python):
    run_python(
        "import torch\n"
        "assert not hasattr(torch, 'vdev')\n"
        "import vccl\n"
        "assert torch.vdev.is_available()\n"
        "assert torch.empty(3, device='vdev').device == torch.device('vdev', 0)\n",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_import_is_idempotent(run_python):
    run_python(
        "import vccl, torch\nfrom vccl import _loading\n_loading.load()\n_loading.load()\n"
        "import vccl\nassert torch.accelerator.current_accelerator().type == 'vdev'\n"
    )


def test_autoload_by_entry_point(run_python, tmp_path):
    # As an installed package declares it, whether or not this one is installed here.
    root = pathlib.Path(vccl.__file__).parent.parent
    project = read_toml((pathlib.Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    info = tmp_path / "vccl_under_test-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vccl-under-test\nVersion: 0\n")
    (value,) = project["entry-points"]["torch.backends"].values()
    (info / "entry_points.txt").write_text(f"[torch.backends]\nvccl = {value}\n")
    run_python(
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(root)!r}]\n"
        "import torch\n"
        "assert 'vccl' in sys.modules\n"
        "assert torch.vdev.device_count() == 8\n"
        "assert torch.distributed.is_backend_available('vccl')\n"
    )


def test_nothing_is_used_before_a_card_is(run_python):
    run_python(
        STATE + "import torch\n"
        "before = threads()\n"
        "import vccl\n"
        "torch.vdev.device_count(); torch.manual_seed(3)\n"
        "state = torch.vdev.get_rng_state_all(); torch.vdev.set_rng_state_all(state)\n"
        "torch.vdev.synchronize(); torch.vdev.empty_cache(); torch.vdev.memory_allocated()\n"
        "torch.vdev.default_stream()\n"
        "assert threads() == before, (threads(), before)\n"
        "assert not memfds() and not torch.vdev.is_initialized()\n"
        "torch.vdev.set_device(1); torch.vdev.current_stream()\n"
        "assert not memfds() and torch.vdev.is_initialized()\n"
        "torch.empty(1, device='vdev')\n"
        "assert len(memfds()) == 1\n",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_a_default_group_of_another_backend_ends_when_it_is_destroyed(run_python):
    # Whoever keeps it keeps gloo's threads, which abort the process if they outlive the interpreter.
    run_python(
        STATE + "import time, torch, torch.distributed as dist\n"
        "before = threads()\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "dist.new_group(backend='vccl')\n"
        "dist.destroy_process_group()\n"
        # A thread that was joined may stay in /proc for a moment.
        "until = time.monotonic() + 60\n"
        "while threads() > before: assert time.monotonic() < until, (threads(), before)\n"
    )


@pytest.mark.parametrize("version", ["2.0.1", "2.99.0.dev20261101+cpu", "2.130.0"])
def test_another_torch_is_refused(run_python, version):
    result = run_python(
        f"import torch\ntorch.__version__ = '{version}'\nimport vccl\n",
        check=False,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert (
        "ImportError" in last and "works with torch 2." in last and version in last and "pip install" in last
    )


def test_exit_is_silent(run_python):
    result = run_python(
        "import torch, vccl\n"
        "kept = [torch.empty(1 << 20, device=f'vdev:{i}') for i in range(3)]\n"
        "pinned = torch.empty(1 << 16, pin_memory=True)\n"
        "stream = torch.vdev.Stream()\n"
        "with torch.vdev.stream(stream):\n"
        "    for _ in range(100): torch.vdev._sleep(1_000_000)\n"
        "    torch.vdev._launch_host_func(lambda: None)\n"
        "torch.vdev._sleep(1_000_000)\n"
        "torch.some_module_attribute = kept\n"
    )
    assert result.stdout == "" and result.stderr == ""


def test_exit_with_an_error_pending_is_silent(run_python):
    result = run_python(
        "import torch, vccl\n"
        "def fail(): raise ValueError('nobody looks')\n"
        "torch.vdev._launch_host_func(fail)\n"
        "torch.vdev._sleep(1000)\n"
    )
    assert result.stderr == ""


def test_exit_with_a_task_that_does_not_end(run_python):
    run_python(
        "import time, torch, vccl\n"
        "torch.vdev._launch_host_func(lambda: time.sleep(3600))\n"
        "torch.vdev._sleep(3600_000_000_000)\n",
    )
