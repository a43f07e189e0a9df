"""Measures what asynchronous operators gain in a training loop whose host has work of its own.

A step trains a transformer on a card, and meanwhile the host computes in Python about as long as the card
does. The loss is read every ten steps. With VDEV_LAUNCH_BLOCKING=1 the two follow each other.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vccl.bench.workloads import LESSONS, READ_SELDOM, Training, current_card

LESSON = "transformer-256"
TURNS = 5  # processes of each kind
WARM_UP = READ_SELDOM  # steps
# The other name of the variable is read where cards pose as CUDA.
SWITCHES = ("VDEV_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING")


@dataclass(frozen=True)
class Overlap:
    """Holds the medians in microseconds: of a step by itself, and of a step with the host's work."""

    alone: float
    blocking: float
    default: float
    gain: float
    right: bool

    def text(self) -> str:
        verdict = "equal" if self.right else "DIFFER"
        return (
            f"# overlap: a step takes {self.alone:.0f} us on the card; with as much work of the host "
            f"{self.blocking:.0f} us blocking, {self.default:.0f} us by default: "
            f"{self.gain:.3f} times as fast, results {verdict}"
        )


def compare(turns: int, small: bool) -> Overlap:
    """Starts processes in turns, and measures."""
    steps = max(READ_SELDOM, turns // READ_SELDOM * READ_SELDOM)
    alone = run(True, 0, steps, small)
    work = round(alone["step"] / alone["unit"])
    rounds = [
        (run(True, work, steps, small), run(False, work, steps, small)) for _ in range(1 if small else TURNS)
    ]
    blocking, default = (statistics.median(one[kind]["step"] for one in rounds) for kind in (0, 1))
    gain = statistics.median(slow["step"] / fast["step"] for slow, fast in rounds)
    right = all(one["losses"] == alone["losses"] for both in rounds for one in both)
    return Overlap(alone["step"] * 1e6, blocking * 1e6, default * 1e6, gain, right)


def run(blocking: bool, work: int, steps: int, small: bool) -> dict:
    """Measures in a process of its own.

    Raises:
        subprocess.CalledProcessError: the process failed. It has printed the reason.
    """
    environment = os.environ | dict.fromkeys(SWITCHES, str(int(blocking))) | {"OMP_NUM_THREADS": "1"}
    words = ["--work", str(work), "--steps", str(steps), *(["--small"] if small else [])]
    command = [sys.executable, "-m", "vccl.bench.overlap", *words]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m vccl.bench.overlap", description=__doc__)
    parser.add_argument("--work", type=int, required=True, help="units of Python work in a step")
    parser.add_argument("--steps", type=int, required=True, help="timed")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args(argv)
    print(json.dumps(measure(args.work, args.steps, args.small)))
    return 0


def measure(work: int, steps: int, small: bool) -> dict:
    """Returns the seconds of a step, the seconds of a unit of the host's work, and all losses."""
    torch.set_num_threads(1)
    card = current_card()
    training = Training(LESSONS[LESSON], READ_SELDOM, card, small)
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            training.settle()
            begin = time.perf_counter()
        training.step()
        toil(work)
    training.settle()
    took = (time.perf_counter() - begin) / steps
    count = 2000
    begin = time.perf_counter()
    toil(count)
    unit = (time.perf_counter() - begin) / count
    return {"step": took, "unit": unit, "losses": training.losses}


def toil(work: int) -> int:
    """Computes in Python, some microseconds a unit."""
    total = 0
    for unit in range(work):
        for number in range(50):
            total += number * unit % 7
    return total


if __name__ == "__main__":
    raise SystemExit(main())
