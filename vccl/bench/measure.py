"""Times one collective at one size, on one or several backends in turn.

Each call writes the buffers anew and lets all ranks go at once (gate.py). The clock then runs from the
Python call until the host can read the result. The backends take turns, so that other activity on the
machine affects all of them. Each backend gets about the same time, so a faster one makes more calls. A turn
starts with a few calls that do not count, because the other backend has changed the state of the caches and
the cores.

The time of a call is from the moment when the last rank called until the last rank had its result. Several
machines share no clock, so there it is the time of the slowest rank. Where each rank does something for
itself, the time begins with the first rank: if ranks outnumber cores, some may be done before the last one
begins.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from vccl.bench.cases import Case
from vccl.bench.gate import Gate

TURNS = 10
SETTLING = 10  # calls
Step = Callable[[], None]


@dataclass(frozen=True)
class Effort:
    """Tells how long to measure: `iterations` calls or, if that is None, as many as fit into `seconds`."""

    warmup: int = 5
    iterations: int | None = None
    seconds: float = 1.0
    fewest: int = 5
    most: int = 4000


@dataclass(frozen=True)
class Timing:
    """Holds what was measured of one case, in microseconds and in GB/s (10^9 bytes)."""

    calls: int
    median: float
    p90: float
    p99: float
    algorithm_bandwidth: float
    bus_bandwidth: float
    wrong: int


def measure(
    cases: Sequence[Case],
    gate: Gate,
    control: dist.ProcessGroup,
    effort: Effort,
    step: Step = lambda: None,
    check: bool = True,
) -> list[Timing]:
    """Returns one timing for each case, which is equal on all ranks. Calls `step` at most TURNS times.

    Without `check` it does not look for wrong elements, which takes as long as some calls if buffers are
    long.
    """
    rounds = [agreed_rounds(case, gate, effort, control) for case in cases]
    turns = min(TURNS, min(rounds))
    marks = torch.zeros(2, len(cases), max(rounds), dtype=torch.float64)
    for turn in range(turns):
        for number, case in enumerate(cases):
            for _ in range(SETTLING):
                timed_call(case, gate)
            for call in torch.arange(rounds[number]).tensor_split(turns)[turn].tolist():
                begin, end = timed_call(case, gate)
                marks[0, number, call] = begin if gate.one_clock else 0.0
                marks[1, number, call] = end if gate.one_clock else end - begin
        step()
    earliest = marks[0].clone()
    dist.all_reduce(marks, op=dist.ReduceOp.MAX, group=control)
    dist.all_reduce(earliest, op=dist.ReduceOp.MIN, group=control)
    together = torch.tensor([case.together for case in cases])
    times = marks[1] - torch.where(together[:, None], marks[0], earliest)
    wrong = torch.tensor([case.wrong() if check else 0 for case in cases])
    dist.all_reduce(wrong, group=control)
    factors = [(case.size, case.bus_factor()) for case in cases]
    counted = [row[:count] for row, count in zip(times, rounds, strict=True)]
    return [summary(*row) for row in zip(factors, counted, wrong.tolist(), strict=True)]


def timed_call(case: Case, gate: Gate) -> tuple[float, float]:
    """Makes one call. Returns when it began and ended on this rank, in seconds."""
    finish = synchronizer(case.setting.device)
    case.reset()
    finish()
    gate.wait()
    begin = time.perf_counter()
    case.call()
    finish()
    end = time.perf_counter()
    gate.wait()
    return begin, end


def synchronizer(device: torch.device) -> Callable[[], None]:
    """Returns a function that makes the host wait for the device. Calls on CPU tensors need no wait."""
    return (lambda: None) if device.type == "cpu" else torch.accelerator.synchronize


def agreed_rounds(case: Case, gate: Gate, effort: Effort, control: dist.ProcessGroup) -> int:
    """Warms up. Returns how many calls of this case to time, which is the same number on every rank."""
    rounds = []
    for _ in range(max(1, effort.warmup)):
        begin = time.perf_counter()
        timed_call(case, gate)
        rounds.append(time.perf_counter() - begin)
    if effort.iterations is not None:
        return effort.iterations
    # The first calls make communicators and map memory, so the median counts and not the mean.
    slowest = torch.tensor(statistics.median(rounds), dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=control)
    return max(effort.fewest, min(effort.most, int(effort.seconds / slowest.item())))


def summary(factors: tuple[int, float], seconds: torch.Tensor, wrong: int) -> Timing:
    """Returns the timing of one case.

    Args:
        factors: the size in bytes, and the quotient of bus bandwidth and algorithm bandwidth.
        seconds: the time of each call.
        wrong: how many elements were wrong on all ranks.
    """
    size, bus_factor = factors
    median, p90, p99 = (seconds.quantile(part).item() for part in (0.5, 0.9, 0.99))
    bandwidth = size / median / 1e9
    return Timing(len(seconds), median * 1e6, p90 * 1e6, p99 * 1e6, bandwidth, bandwidth * bus_factor, wrong)
