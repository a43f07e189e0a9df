"""Times one collective at one size, on one or several backends in turn.

A call goes: write the buffers anew, let all ranks go at once (gate.py), then the clock runs from the Python
call until the host can read the result. The backends take turns, so that what else happens on the machine
meets all of them; each gets about the same time, and so the more calls the faster it is. A turn starts with a
few calls that do not count, since the caches and the cores are as the other backend left them. A call has
taken from when the last rank called until the last rank had its result; on several machines, which share no
clock, as long as it took the slowest rank. What ranks do each for itself counts from when the first one
began: where ranks outnumber cores, it may be done before the last one begins.
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
    """How long to measure a case: `iterations` calls; where that is None, as many as fit into `seconds`."""

    warmup: int = 5
    iterations: int | None = None
    seconds: float = 1.0
    fewest: int = 5
    most: int = 4000


@dataclass(frozen=True)
class Timing:
    """Times in microseconds; bandwidths in GB/s (10^9 bytes)."""

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
    """One timing a case, equal on all ranks. Calls `step` now and then, TURNS times at most.

    Without `check` nobody looks for wrong elements, which takes as long as some calls where buffers are long.
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
    """When one call began and ended on this rank, in seconds."""
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
    """What makes the host wait for the device. A call on CPU tensors has returned when it is done."""
    return (lambda: None) if device.type == "cpu" else torch.accelerator.synchronize


def agreed_rounds(case: Case, gate: Gate, effort: Effort, control: dist.ProcessGroup) -> int:
    """Warms up; then how many calls of this case to time, the same number on every rank."""
    rounds = []
    for _ in range(max(1, effort.warmup)):
        begin = time.perf_counter()
        timed_call(case, gate)
        rounds.append(time.perf_counter() - begin)
    if effort.iterations is not None:
        return effort.iterations
    # The median: the first call, or the first few, make communicators and map memory.
    slowest = torch.tensor(statistics.median(rounds), dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=control)
    return max(effort.fewest, min(effort.most, int(effort.seconds / slowest.item())))


def summary(factors: tuple[int, float], seconds: torch.Tensor, wrong: int) -> Timing:
    """`factors`: the size in bytes, and what makes bus bandwidth of algorithm bandwidth."""
    size, bus_factor = factors
    median, p90, p99 = (seconds.quantile(part).item() for part in (0.5, 0.9, 0.99))
    bandwidth = size / median / 1e9
    return Timing(len(seconds), median * 1e6, p90 * 1e6, p99 * 1e6, bandwidth, bandwidth * bus_factor, wrong)
