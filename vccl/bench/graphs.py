"""Compares work that is replayed from a graph with the same work, called by Python each time.

Both end with a synchronisation with the card. The last column is the time for which a replay keeps the host.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vccl.bench.workloads import current_card

COUNT = 100  # calls in a graph
TURNS = 21
ELEMENTS = 64


def copies(card: torch.device) -> Callable[[], None]:
    """Returns a function that copies from pinned memory to the card, without blocking the host."""
    host = torch.arange(float(ELEMENTS)).pin_memory()
    there = torch.zeros(ELEMENTS, device=card)

    def call() -> None:
        for _ in range(COUNT):
            there.copy_(host, non_blocking=True)

    return call


CASES: dict[str, Callable[[torch.device], Callable[[], None]]] = {"copies": copies}


@dataclass(frozen=True)
class Row:
    """Holds the medians of a case in microseconds: a round of calls, its replay, and what the host does."""

    name: str
    eager: float
    replay: float
    host: float

    def text(self) -> str:
        return f" {f'{COUNT} {self.name}':<16} {self.eager:>11.2f} {self.replay:>11.2f} {self.host:>11.2f}"


HEAD = f"#{'case':<16} {'eager (us)':>11} {'replay (us)':>11} {'host (us)':>11}"


def measure(name: str, repeat: int) -> Row:
    """Measures a case in turns of `repeat` rounds on the current card."""
    card = current_card()
    call = CASES[name](card)
    graph = torch.accelerator.Graph()
    with torch.Stream(), graph:
        call()
    times: tuple[list[float], list[float]] = ([], [])
    host = []
    for _ in range(TURNS):
        for number, run in enumerate((call, graph.replay)):
            torch.accelerator.synchronize()
            begin = time.perf_counter()
            for _ in range(repeat):
                run()
            enqueued = time.perf_counter()
            torch.accelerator.synchronize()
            times[number].append((time.perf_counter() - begin) / repeat * 1e6)
        host.append((enqueued - begin) / repeat * 1e6)
    return Row(name, statistics.median(times[0]), statistics.median(times[1]), statistics.median(host))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m vccl.bench graphs", description=__doc__)
    parser.add_argument("--repeat", type=int, default=100, help="rounds in a turn (default: 100)")
    args = parser.parse_args(argv)
    if args.repeat < 1:
        parser.error("--repeat has to be at least 1")
    torch.set_num_threads(1)
    print(HEAD)
    for name in CASES:
        print(measure(name, args.repeat).text())
    return 0
