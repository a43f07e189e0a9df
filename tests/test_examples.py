"""The examples run as a newcomer runs them, only shorter."""

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def test_all_reduce(vrun):
    output = vrun("--cards", 2, EXAMPLES / "all_reduce.py")
    for rank in range(2):
        assert f"rank {rank} of 2: tensor([3., 3., 3., 3.], device='vdev:{rank}')" in output


@pytest.mark.parametrize("backend, device", [("gloo", "cpu"), ("vccl", "vdev"), ("vccl", "cpu")])
def test_train_gpt(vrun, tmp_path, backend, device):
    output = vrun(
        *("--cards", 2, EXAMPLES / "train_gpt.py", "--backend", backend, "--device", device),
        *("--steps", 12, "--batch-size", 4, "--report-every", 4, "--sample", 20, "--prompt", "class "),
        timeout=240,
    )
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d{4})", output)]
    assert len(losses) == 3 and losses[0] > losses[1] > losses[2], output
    assert (tmp_path / "checkpoints" / "gpt.pt").exists()
    written = output.partition("asked to go on from 'class ':\n\n")[2]
    assert written.startswith("class ") and len(written.rstrip("\n")) > len("class "), output


def test_both_backends_train_alike(vrun):
    """Same seed, same batches: what moves the gradients makes no difference to speak of."""

    def losses(backend: str, device: str) -> list[float]:
        output = vrun(
            *("--cards", 2, EXAMPLES / "train_gpt.py", "--backend", backend, "--device", device),
            *("--steps", 3, "--batch-size", 2, "--report-every", 1, "--sample", 1),
            timeout=240,
        )
        return [float(loss) for loss in re.findall(r"loss (\d+\.\d{4})", output)]

    assert losses("vccl", "vdev") == pytest.approx(losses("gloo", "cpu"), abs=2e-4)
