"""Measures what communication costs a training step of DistributedDataParallel, on vccl and on gloo in turn.

    vrun --cards 2 -m vccl.bench.ddp

A step is the forward pass, the backward pass and the optimizer's pass of an MLP. It lasts from the moment
when all ranks have come until the slowest is done. Communication is the time that a step takes longer than
a step under ``no_sync()``, which computes the same and sends nothing. Prints a line for each backend, with
medians in milliseconds.
"""

import argparse
import contextlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from vccl._device_type import device_type
from vccl.bench.gate import Gate
from vccl.bench.job import world
from vccl.bench.measure import synchronizer


@dataclass
class Trainee:
    """Trains a model on one backend, and keeps its times in milliseconds with and without communication."""

    name: str
    group: dist.ProcessGroup
    device: torch.device
    width: int
    layers: int
    batch: int
    times: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        layers = [
            layer
            for _ in range(self.layers)
            for layer in (torch.nn.Linear(self.width, self.width), torch.nn.ReLU())
        ]
        self.model = torch.nn.Sequential(*layers).to(self.device)
        self.ddp = DistributedDataParallel(self.model, process_group=self.group, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=1e-3)
        torch.manual_seed(1 + dist.get_rank())
        self.input = torch.randn(self.batch, self.width).to(self.device)
        self.finish = synchronizer(self.device)

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def step(self, gate: Gate, communicates: bool) -> float:
        """Makes one step. Returns its seconds on this rank."""
        self.optimizer.zero_grad(set_to_none=False)
        self.finish()
        gate.wait()
        begin = time.perf_counter()
        with contextlib.nullcontext() if communicates else self.ddp.no_sync():
            self.ddp(self.input).square().mean().backward()
        self.optimizer.step()
        self.finish()
        took = time.perf_counter() - begin
        gate.wait()
        return took

    def communication(self) -> float:
        """Returns the milliseconds of a step."""
        return statistics.median(self.times[True]) - statistics.median(self.times[False])


def measure(trainees: Sequence[Trainee], steps: int, control: dist.ProcessGroup) -> None:
    """Makes `steps` steps of each kind on each backend, in turns."""
    gate = Gate(control)
    for turn in range(-2, steps):
        for trainee in trainees:
            for communicates in (True, False):
                # The slowest rank counts, because the others wait for it in their next step.
                slowest = torch.tensor(trainee.step(gate, communicates), dtype=torch.float64)
                dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=control)
                if turn >= 0:  # the first steps make buckets, communicators and momentum
                    trainee.times[communicates].append(slowest.item() * 1e3)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m vccl.bench.ddp",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--width", type=int, default=2048, help="of a layer (default: 2048)")
    parser.add_argument("--layers", type=int, default=6, help="(default: 6, 25 million parameters)")
    parser.add_argument("--batch", type=int, default=8, help="of a rank (default: 8)")
    parser.add_argument("--steps", type=int, default=30, help="timed, of each kind (default: 30)")
    args = parser.parse_args(argv)

    dist.init_process_group("gloo")
    try:
        compare(args, world())
    finally:
        dist.destroy_process_group()
    return 0


def compare(args: argparse.Namespace, control: dist.ProcessGroup) -> None:
    """Measures and prints. Leaves no DDP object behind, because none may outlive a group of gloo."""
    card = torch.device(device_type(), dist.get_rank() % torch.accelerator.device_count())
    torch.accelerator.set_device_index(card.index)
    shape = (args.width, args.layers, args.batch)
    trainees = [
        Trainee("vccl", dist.new_group(backend="vccl"), card, *shape),
        Trainee("gloo", dist.new_group(backend="gloo"), torch.device("cpu"), *shape),
    ]
    measure(trainees, args.steps, control)
    if dist.get_rank() == 0:
        report(trainees)


def report(trainees: Sequence[Trainee]) -> None:
    count = trainees[0].parameters / 1e6
    print(f"DDP, {count:.1f} million parameters, {dist.get_world_size()} ranks; milliseconds a step")
    for trainee in trainees:
        step, alone = (statistics.median(trainee.times[kind]) for kind in (True, False))
        print(
            f"{trainee.name:>6} on {trainee.device.type:4}: {step:7.1f}, without communication {alone:7.1f}: "
            f"communication {trainee.communication():7.1f}"
        )
    ours, theirs = (trainee.communication() for trainee in trainees)
    print(f"communication of gloo / vccl: {theirs / ours:.1f}")


if __name__ == "__main__":
    raise SystemExit(main())
