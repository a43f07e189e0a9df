"""What a new user does first, with whatever torch and Python there is (.github/workflows/nightly.yml).

Nothing here needs more than the package itself, pytest and what these require.
"""

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.daily

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = Path(sys.executable).parent
# Nothing is said about devices but what the command line says. numpy may be missing, which torch says.
UNSET: dict[str, str | None] = dict.fromkeys(("TORCH_DEVICE_BACKEND_AUTOLOAD", "VDEV_HOSTID", "PYTHONPATH"))
UNSET["PYTHONWARNINGS"] = "ignore:Failed to initialize NumPy"


def test_import_says_nothing_and_brings_the_cards(run):
    code = "import torch; print(torch.arange(4.0, device='vdev').sum().item(), torch.vdev.device_count())"
    environment = {**UNSET, "VDEV_DEVICE_COUNT": "3"}
    assert run([sys.executable, "-c", code], env=environment) == "6.0 3\n"


def test_all_reduce_on_two_ranks(run):
    output = run([COMMANDS / "vrun", "--cards", "2", ROOT / "examples" / "all_reduce.py"], env=UNSET)
    for rank in range(2):
        assert f"rank {rank} of 2: tensor([3., 3., 3., 3.], device='vdev:{rank}')" in output


TRAINING = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
card = int(os.environ["LOCAL_RANK"])
torch.accelerator.set_device_index(card)
dist.init_process_group("vccl")
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
alone = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
alone.load_state_dict(net.state_dict())
model = DistributedDataParallel(net.to("vdev"), device_ids=[card])
x = torch.arange(32.0).view(8, 4) / 32
for trained, part in ((model, x[card::2].to("vdev")), (alone, x)):
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    trained(part).square().mean().backward()
    optimizer.step()
for ours, theirs in zip(net.parameters(), alone.parameters(), strict=True):
    torch.testing.assert_close(ours.cpu(), theirs)
print(f"rank {dist.get_rank()} has trained on {x.to('vdev').device}")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("launcher", [("vrun", "--cards", "2"), ("torchrun", "--nproc-per-node", "2")])
def test_a_step_of_ddp(run, tmp_path, launcher):
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    command, *options = launcher
    output = run([COMMANDS / command, *options, script], env=UNSET)
    for rank in range(2):
        assert f"rank {rank} has trained on vdev:{rank}" in output


def test_the_plugin_runs_a_test_on_two_ranks(run, tmp_path):
    (tmp_path / "test_sum.py").write_text(
        "import pytest, torch\n"
        "@pytest.mark.ranks(2)\n"
        "def test_sum(ranks):\n"
        "    x = torch.full((3,), float(ranks.rank), device=ranks.device)\n"
        "    torch.distributed.all_reduce(x)\n"
        "    assert x.eq(1).all()\n"
    )
    options = ("-p", "no:cacheprovider", "-W", "error::pytest.PytestWarning", "--rootdir", tmp_path)
    output = run([sys.executable, "-m", "pytest", *options, tmp_path], env=UNSET)
    assert "1 passed" in output and "warning" not in output


def test_a_report_of_what_is_there(run):
    output = run([sys.executable, "-m", "vccl"], env={**UNSET, "VDEV_DEVICE_COUNT": "2", "VDEV_MEMORY": "1G"})
    told = dict(line.split("  ", 1) for line in output.splitlines())
    told = {name: text.strip() for name, text in told.items()}
    import torch

    assert told["torch"].startswith(torch.__version__)
    assert told["cards"] == "vdev:0 to vdev:1, of 1.0 GiB each"
    assert told["accelerator"] == "vdev" and told["backend"] == "vccl"
    assert told["built by"].startswith(("GCC ", "Clang "))
    assert "VDEV_DEVICE_COUNT='2' VDEV_MEMORY='1G'" in told["switched on"]
    wrong = run([sys.executable, "-m", "vccl"], env={**UNSET, "VDEV_DEVICE_COUNT": "none"})
    assert "none: VDEV_DEVICE_COUNT='none' is not valid" in wrong
    assert "usage: python -m vccl" in run([sys.executable, "-m", "vccl", "--help"], env=UNSET)
