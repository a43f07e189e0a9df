"""A script for GPUs is converted, and trains on virtual cards."""

import re
import shutil
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "cuda_training.py"


@pytest.mark.parametrize("amp", [False, True], ids=["float32", "amp"])
def test_a_script_for_gpus_trains_on_two_cards(run, vrun, tmp_path, amp):
    script = tmp_path / "train.py"
    shutil.copy(SCRIPT, script)
    report = run([sys.executable, "-m", "vccl.convert", "--write", script])
    assert "1 files: 1 changed, 0 places left, 0 errors" in report
    run([sys.executable, "-m", "vccl.convert", "--check", "--quiet", script])

    output = vrun("--cards", 2, script, *(["--amp"] if amp else []))
    for rank in range(2):
        found = re.search(rf"rank {rank} on vdev:{rank}: losses ([\d.]+) to ([\d.]+), (.*)", output)
        assert found, output
        assert float(found[2]) < float(found[1]), output
        assert found[3] == "same weights True, timed True, memory True", output
