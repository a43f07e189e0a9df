"""Compares the operators with what torch's own operators take, on a card and on the CPU, in turns.

python bench.py [ELEMENTS]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from squared_relu import CARD, bias_squared_relu, squared_relu
from torch.utils.benchmark import Timer

SIZE = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 20
WIDTH = 256
ROUNDS = 5


def finished(function: Callable[[], torch.Tensor], device: str) -> Callable[[], None]:
    def run() -> None:
        function()
        if device != "cpu":
            torch.accelerator.synchronize()

    return run


def cases(device: str) -> dict[str, Callable[[], torch.Tensor]]:
    x = torch.randn(SIZE // WIDTH, WIDTH, device=device)
    bias = torch.randn(WIDTH, device=device)
    return {
        "relu, square": lambda: torch.relu(x).square(),
        "squared_relu": lambda: squared_relu(x),
        "add, relu, square": lambda: torch.relu(x + bias).square(),
        "bias_squared_relu": lambda: bias_squared_relu(x, bias),
    }


def main() -> None:
    timers = {
        (name, device): Timer("run()", globals={"run": finished(function, device)})
        for device in ("cpu", CARD)
        for name, function in cases(device).items()
    }
    best = dict.fromkeys(timers, float("inf"))
    for _ in range(ROUNDS):  # in turns, so that a busy moment of the machine meets all of them
        for key, timer in timers.items():
            best[key] = min(best[key], timer.timeit(10).mean)
    print(f"{SIZE} elements of float32, us")
    print(f"{'':20}{'cpu':>10}{CARD:>10}")
    for name in dict.fromkeys(name for name, _ in timers):
        print(f"{name:20}{best[name, 'cpu'] * 1e6:10.1f}{best[name, CARD] * 1e6:10.1f}")


if __name__ == "__main__":
    main()
