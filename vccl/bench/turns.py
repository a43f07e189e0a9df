"""Lets the card and the CPU take turns at one workload, in one process."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from vccl.bench.workloads import Workload, current_card

TURN = 0.01  # seconds that a turn of the CPU takes at least
WARM_UP = 3  # turns that do not count


@dataclass(frozen=True)
class Contest:
    """Tells how to make a workload, and how many steps make a turn.

    ``steps`` is the number of steps, or if ``exact`` is false the number whose multiples are possible.
    A turn that is exact is short, so there are ``more`` times as many turns.
    """

    make: Callable[[torch.device, bool], Workload]
    steps: int = 1
    exact: bool = False
    more: int = 1


@dataclass(frozen=True)
class Row:
    """Holds the medians of a case, in microseconds a step, and how many of the results differ.

    ``low`` and ``high`` are the quartiles of the ratios of card and CPU, of which ``ratio`` is the median.
    """

    name: str
    turns: int
    steps: int
    cpu: float
    card: float
    ratio: float
    low: float
    high: float
    different: int

    def text(self) -> str:
        verdict = "equal" if self.different == 0 else f"{self.different} DIFFER"
        return (
            f" {self.name:<20} {self.cpu:>11.2f} {self.card:>11.2f} {self.card - self.cpu:>10.2f} "
            f"{self.ratio:>6.3f} {self.low:>6.3f} {self.high:>6.3f} {verdict:>10}"
        )


HEAD = (
    f"#{'case':<20} {'CPU (us)':>11} {'card (us)':>11} {'over (us)':>10} "
    f"{'ratio':>6} {'from':>6} {'to':>6} {'results':>10}"
)


def compare(name: str, contest: Contest, turns: int, small: bool) -> Row:
    """Measures one case on the CPU and on the current card."""
    card = current_card()
    workloads = [contest.make(device, small) for device in (torch.device("cpu"), card)]
    steps = contest.steps
    for _ in range(WARM_UP):
        took = [timed(workload, steps) for workload in workloads]
    if not (contest.exact or small):
        steps *= max(1, round(TURN / took[0]))
    turns *= contest.more
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns):
        # Who comes first finds the caches as the other one has left them, so each does in every second turn.
        for number in (0, 1) if turn % 2 == 0 else (1, 0):
            times[number].append(timed(workloads[number], steps) / steps * 1e6)
    ratios = torch.tensor([there / here for here, there in zip(*times, strict=True)], dtype=torch.float64)
    low, ratio, high = (ratios.quantile(part).item() for part in (0.25, 0.5, 0.75))
    wrong = different(*(workload.results() for workload in workloads))
    here, there = (statistics.median(some) for some in times)
    return Row(name, turns, steps, here, there, ratio, low, high, wrong)


def timed(workload: Workload, steps: int) -> float:
    """Makes so many steps. Returns the seconds that they took."""
    workload.settle()
    begin = time.perf_counter()
    workload.run(steps)
    took = time.perf_counter() - begin
    workload.settle()
    return took


def different(some: torch.Tensor, others: torch.Tensor) -> int:
    """Returns how many elements are not equal. NaN differs from everything, because training must be sane."""
    return int((some != others).sum())
