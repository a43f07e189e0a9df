"""The examples run as a newcomer runs them, only shorter."""

import argparse
import importlib.util
import re
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_all_reduce(vrun):
    output = vrun("--cards", 2, EXAMPLES / "all_reduce.py")
    for rank in range(2):
        assert f"rank {rank} of 2: tensor([3., 3., 3., 3.], device='vdev:{rank}')" in output


@pytest.mark.parametrize("backend, device", [("gloo", "cpu"), ("vccl", "vdev"), ("vccl", "cpu")])
def test_train_gpt(vrun, tmp_path, backend, device):
    output = vrun(
        *("--cards", 2, EXAMPLES / "train_gpt.py", "--backend", backend, "--device", device),
        *("--steps", 12, "--batch-size", 4, "--report-every", 4, "--sample", 20, "--prompt", "class "),
    )
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d{4})", output)]
    assert len(losses) == 3 and losses[0] > losses[1] > losses[2], output
    assert (tmp_path / "checkpoints" / "gpt.pt").exists()
    written = output.partition("asked to go on from 'class ':\n\n")[2]
    assert written.startswith("class ") and len(written.rstrip("\n")) > len("class "), output


@pytest.mark.daily
def test_train_gpt_for_some_seconds(vrun):
    """All ranks end at the same step, else one would wait for the others. The bar counts seconds."""
    output = vrun(
        *("--cards", 2, EXAMPLES / "train_gpt.py", "--seconds", 1.5, "--batch-size", 2, "--sample", 1),
    )
    assert re.search(r"\d% ?\|.*\| \d of 1.5 s", output) and "step/s" not in output, output
    assert re.findall(r"^step +\d+  loss", output, re.MULTILINE), output


@pytest.mark.parametrize("seconds_a_step", [0.001, 0.25, 1.3])
def test_train_gpt_ends_in_time(seconds_a_step):
    """The ranks look at the clock often enough to end in time, and seldom where steps are short."""
    spec = importlib.util.spec_from_file_location("train_gpt", EXAMPLES / "train_gpt.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    args = argparse.Namespace(steps=None, seconds=60)
    step, left, looks = 1, 1, 0
    elapsed = 5.0  # of the first step, which meets the other ranks
    while left > 0:
        looks += 1
        left = example.steps_left(step, elapsed, args)
        ahead = example.steps_to_next_look(step, left, report_every=20)
        if left > 0:
            step += ahead
            elapsed += ahead * seconds_a_step
    assert 60 - 2 * seconds_a_step <= elapsed <= 60
    assert looks <= step / 20 + 20


@pytest.mark.daily
def test_both_backends_train_alike(vrun):
    """Same seed, same batches: what moves the gradients makes no difference to speak of."""

    def losses(backend: str, device: str) -> list[float]:
        output = vrun(
            *("--cards", 2, EXAMPLES / "train_gpt.py", "--backend", backend, "--device", device),
            *("--steps", 3, "--batch-size", 2, "--report-every", 1, "--sample", 1),
        )
        return [float(loss) for loss in re.findall(r"loss (\d+\.\d{4})", output)]

    assert losses("vccl", "vdev") == pytest.approx(losses("gloo", "cpu"), abs=2e-4)


@pytest.mark.daily
@pytest.mark.parametrize("hosts", [1, 2])
def test_survive(run, hosts):
    """The loss is that of the runs without faults, although every fault of the plans has struck."""
    output = run([sys.executable, EXAMPLES / "survive.py", "--hosts", str(hosts)])
    assert "no fault has changed the loss\n" in output, output
    # tests/frameworks has torchft.
    assert importlib.util.find_spec("torchft") or "not run, because it needs torchft" in output, output
    # In the vrun with restarts: seven ends of attempts, and what only takes time.
    for kind in ("kill during", "segv before", "raise before", "exit after", "abort during", "oom before"):
        assert re.search(rf"rank [01]: {kind} all_reduce", output), output
    assert "rank 1: kill before checkpoint" in output and "rank 1: stop during all_reduce" in output, output
    assert "goes on after" in output and "rank 1 goes on" not in output, output
    assert ("rank 0: reset-link during all_reduce" in output) is (hosts == 2), output
