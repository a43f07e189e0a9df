"""The table that people read and the JSON that programs read."""

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import vccl
from vccl.bench.measure import Timing


@dataclass(frozen=True)
class Row:
    """One size: what was called, and a timing for each backend."""

    size: int
    count: int
    dtype: str
    op: str
    root: int
    timings: dict[str, Timing]


class Table:
    """Prints the columns of nccl-tests for each contender, and how the first compares with each other one."""

    def __init__(self, title: str, contenders: Sequence[str]) -> None:
        self.title = title
        self.contenders = contenders

    def head(self) -> None:
        common = f"#{'size':>11} {'count':>11} {'type':>9} {'redop':>6} {'root':>5}"
        units = f"#{'(B)':>11} {'(elements)':>11} {'':>9} {'':>6} {'':>5}"
        names = f"#{'':>46}"
        for contender in self.contenders:
            common += f" |{'time':>9} {'p90':>9} {'algbw':>7} {'busbw':>7} {'#wrong':>6}"
            units += f" |{'(us)':>9} {'(us)':>9} {'(GB/s)':>7} {'(GB/s)':>7} {'':>6}"
            names += f" |{contender:^42}"
        for other in self.contenders[1:]:
            common += f" |{'time of ' + other:>15}"
            units += f" |{'/ ' + self.contenders[0]:>15}"
            names += f" |{'':>15}"
        print(f"# {self.title}", names, common, units, sep="\n", flush=True)

    def row(self, row: Row) -> None:
        text = f" {row.size:>11} {row.count:>11} {row.dtype:>9} {row.op:>6} {row.root:>5}"
        timings = [row.timings[contender] for contender in self.contenders]
        for timing in timings:
            text += f" |{timing.median:>9.1f} {timing.p90:>9.1f} {timing.algorithm_bandwidth:>7.2f}"
            text += f" {timing.bus_bandwidth:>7.2f} {timing.wrong:>6}"
        for timing in timings[1:]:
            text += f" |{timing.median / timings[0].median:>14.1f}x"
        print(text, flush=True)


def write_json(path: Path, facts: dict[str, object], rows: Sequence[Row]) -> None:
    """{"machine": {...}, ..., "rows": [...]}: times in microseconds, bandwidths in GB/s, sizes in bytes."""
    text = json.dumps({"machine": machine(), **facts, "rows": [asdict(row) for row in rows]}, indent=2)
    path.write_text(text + "\n")


def machine() -> dict[str, object]:
    """What a reader of the figures has to know about where they come from."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "vccl": vccl.__version__,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
