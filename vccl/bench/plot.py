"""Draws what --json wrote: latency and bus bandwidth over size, with a line for each contender."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vccl.bench.measure import Timing
from vccl.bench.report import Row, read_json
from vccl.bench.sizes import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KILO = 1024


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m vccl.bench plot", description=__doc__)
    parser.add_argument("figures", type=Path, nargs="+", help="files that vccl.bench --json wrote")
    parser.add_argument("--output", type=Path, default=Path("figures.png"), help="default: figures.png")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Draws a row of two pictures for each file."""
    args = parse(argv)
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SystemExit(
            "vccl.bench plot needs matplotlib: pip install 'vccl[bench]', or pip install matplotlib"
        ) from error
    figure = Figure(figsize=(11, 4 * len(args.figures)), layout="constrained")
    grid = figure.subplots(len(args.figures), 2, squeeze=False)
    for path, (latency, bandwidth) in zip(args.figures, grid, strict=True):
        facts, rows = read_json(path)
        title = f"{facts['collective']} of {rows[0].dtype}, {facts['ranks']} ranks"
        draw(latency, rows, lambda timing: timing.median, lambda timing: timing.p99)
        latency.set(title=title, ylabel="time in us: median, and to the 99th percentile", yscale="log")
        draw(bandwidth, rows, lambda timing: timing.bus_bandwidth)
        bandwidth.set(title=title, ylabel="bus bandwidth in GB/s (median)")
    figure.savefig(args.output, dpi=120)
    print(f"wrote {args.output}")
    return 0


def draw(
    axes: "Axes",
    rows: Sequence[Row],
    of: Callable[[Timing], float],
    upto: Callable[[Timing], float] | None = None,
) -> None:
    """Draws a line for each contender.

    Args:
        axes: where it is drawn.
        rows: what was measured, in the order of the sizes.
        of: gives the height of the line at a measurement.
        upto: gives the height that the shade above the line reaches. Without it there is no shade.
    """
    sizes = [row.size for row in rows]
    for contender in rows[0].timings:
        timings = [row.timings[contender] for row in rows]
        (line,) = axes.plot(sizes, [of(timing) for timing in timings], marker=".", label=contender)
        if upto is not None:
            axes.fill_between(
                sizes,
                [of(timing) for timing in timings],
                [upto(timing) for timing in timings],
                color=line.get_color(),
                alpha=0.15,
                linewidth=0,
            )
    axes.set_xscale("log", base=2)
    ticks = sizes[:: max(1, len(sizes) // 8)]
    axes.set_xticks(ticks, [format_size(size) for size in ticks])
    axes.set_xlabel("size in bytes")
    axes.grid(alpha=0.3)
    axes.legend()
