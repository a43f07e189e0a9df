"""vccl does not require numpy, which torch does not require, either."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def without_numpy(tmp_path):
    """The environment of a process that finds a package numpy that cannot be imported."""
    package = tmp_path / "hidden" / "numpy"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ModuleNotFoundError('numpy is hidden')\n")
    paths = [str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.daily
def test_bench_and_compare(run, vrun, without_numpy, tmp_path):
    assert "all_reduce" in vrun(
        "--cards", 2, "-m", "vccl.bench", "all_reduce", "--max", "4K", env=without_numpy
    )
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, torch.distributed as dist, vccl.compare\n"
        "dist.init_process_group('vccl')\n"
        "x = {'x': torch.arange(5.0, device='vdev')}\n"
        "assert not vccl.compare.compare_ranks(x).names\n"
        "dist.destroy_process_group()\n"
        "assert not torch.storage.HAS_NUMPY\n"
    )
    vrun("--cards", 2, script, env=without_numpy)


def test_ranks_of_the_plugin(run, without_numpy, tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import pytest, torch\n"
        "from vccl.testing import assert_same_on_all_ranks\n"
        "@pytest.mark.ranks(2)\n"
        "def test_same(ranks):\n"
        "    assert not torch.storage.HAS_NUMPY\n"
        "    for same in (torch.ones(3, device=ranks.device), torch.ones(0), torch.tensor(2.0)):\n"
        "        assert_same_on_all_ranks(same)\n"
        "    with pytest.raises(AssertionError):\n"
        "        assert_same_on_all_ranks(torch.tensor([1.0, ranks.rank]))\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path]
    assert "1 passed" in run(command, env=without_numpy)
