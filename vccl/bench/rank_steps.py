"""Measures steps of DistributedDataParallel and FSDP2 on several ranks.

    vrun --cards 2 -m vccl.bench.rank_steps ddp

A step trains a transformer, each rank on a batch of its own, and reads the loss. It lasts from the moment
when all ranks have come until the slowest is done. The losses are compared with those of one process that
trains on all batches on the CPU.
"""

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from vccl.bench.gate import Gate
from vccl.bench.job import run_ranks
from vccl.bench.workloads import Transformer, current_card, synchronize

KINDS = ("ddp", "fsdp2")
WARM_UP = 3  # steps
CHECKED = 6  # steps whose losses are compared
TOLERANCE = 1e-4  # of a loss, because one process adds up gradients in another order


@dataclass(frozen=True)
class RankSteps:
    """Holds the median and the quartiles of a step in milliseconds, and whether the losses are right."""

    kind: str
    ranks: int
    steps: int
    median: float
    low: float
    high: float
    loss: float
    right: bool

    def text(self) -> str:
        verdict = "right" if self.right else "WRONG"
        return (
            f"# {self.kind}, {self.ranks} ranks: {self.median:.2f} ms a step, quartiles {self.low:.2f} and "
            f"{self.high:.2f}; the losses are {verdict} (the last one is {self.loss:.4f})"
        )


def start(kind: str, ranks: int, steps: int, small: bool) -> RankSteps:
    """Starts ranks, and returns what they have measured.

    Raises:
        subprocess.CalledProcessError: the job failed. It has printed the reason.
    """
    with tempfile.TemporaryDirectory(prefix="vccl-bench-") as folder:
        path = Path(folder) / "figures.json"
        words = [kind, "--steps", str(steps), "--json", str(path), *(["--small"] if small else [])]
        run_ranks(ranks, words, os.environ | {"OMP_NUM_THREADS": "1"}, "vccl.bench.rank_steps")
        return RankSteps(**json.loads(path.read_text()))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m vccl.bench.rank_steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--steps", type=int, default=40, help="timed (default: 40)")
    parser.add_argument("--small", action="store_true", help="a tiny model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes the figures there too")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    card = torch.device(current_card().type, int(os.environ["LOCAL_RANK"]))
    torch.accelerator.set_device_index(card.index)
    dist.init_process_group(dist.get_default_backend_for_device(card))
    try:
        result = measure(args.kind, args.steps, args.small, card, dist.new_group(backend="gloo"))
    finally:
        dist.destroy_process_group()
    if int(os.environ["RANK"]) == 0:
        print(result.text())
        if args.json:
            args.json.write_text(json.dumps(asdict(result)) + "\n")
    return 0


def measure(kind: str, steps: int, small: bool, card: torch.device, control: dist.ProcessGroup) -> RankSteps:
    """Trains and measures. Every rank returns the same."""
    ranks, rank = control.size(), control.rank()
    model = wrapped(kind, make_model(small).to(card))
    texts = batches(ranks, small)
    own = texts[rank].to(card)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gate = Gate(control)
    times, losses = [], []
    for _ in range(WARM_UP + steps):
        synchronize(card)
        gate.wait()
        begin = time.perf_counter()
        loss = train(model, optimizer, [own])
        synchronize(card)
        figures = torch.tensor([time.perf_counter() - begin, loss], dtype=torch.float64)
        gate.wait()
        slowest, mean = figures.clone(), figures.clone()
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=control)
        dist.all_reduce(mean, op=dist.ReduceOp.SUM, group=control)
        times.append(slowest[0].item() * 1e3)
        losses.append(mean[1].item() / ranks)
    right = are_right(losses, reference(texts, small))
    low, median, high = statistics.quantiles(times[WARM_UP:], n=4) if steps > 1 else times[-1:] * 3
    return RankSteps(kind, ranks, steps, median, low, high, losses[-1], right)


def make_model(small: bool) -> nn.Module:
    """Returns the same model on every rank."""
    torch.manual_seed(0)
    width, layers, words, length = (32, 2, 16, 4) if small else (256, 4, 512, 64)
    return Transformer(width, layers, words, length)


def batches(ranks: int, small: bool) -> list[torch.Tensor]:
    """Returns the batch of each rank, with a word more than the model reads."""
    torch.manual_seed(1)
    words, length, batch = (16, 4, 2) if small else (512, 64, 4)
    return list(torch.randint(words, (ranks, batch, length + 1)))


def wrapped(kind: str, model: nn.Module) -> nn.Module:
    """Returns the model as DistributedDataParallel or FSDP2 trains it."""
    if kind == "ddp":
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    assert isinstance(model, Transformer)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def loss_of(model: nn.Module, text: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(text[:, :-1]), text[:, 1:].flatten())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, texts: Sequence[torch.Tensor]) -> float:
    """Makes one step on the mean of the losses of all texts. Returns that mean."""
    optimizer.zero_grad()
    total = 0.0
    for text in texts:
        loss = loss_of(model, text) / len(texts)
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


def reference(texts: Sequence[torch.Tensor], small: bool) -> list[float]:
    """Returns the losses of the first steps of one process that trains on all batches on the CPU."""
    model = make_model(small)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return [train(model, optimizer, texts) for _ in range(CHECKED)]


def are_right(losses: Sequence[float], expected: Sequence[float]) -> bool:
    """Tells whether the first losses are those that are expected."""
    return all(math.isclose(*pair, rel_tol=TOLERANCE) for pair in zip(losses, expected, strict=False))


if __name__ == "__main__":
    raise SystemExit(main())
