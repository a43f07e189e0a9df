"""Writes the table that people read and the JSON that programs read."""

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import vccl
from vccl.bench.measure import Timing


@dataclass(frozen=True)
class Row:
    """Holds what was called at one size, and a timing for each contender.

    ``traffic`` is the number of bytes that all ranks together have to read and write (Case.traffic).
    ``memory`` is the number of bytes a second that they reached in the same run without a collective, or
    None if that was not measured.
    """

    size: int
    count: int
    dtype: str
    op: str
    root: int
    timings: dict[str, Timing]
    traffic: float = 0.0
    memory: float | None = None

    def ratio(self, other: str) -> float:
        """Returns how many times longer `other` takes than the first contender, in the median."""
        first = next(iter(self.timings.values()))
        return self.timings[other].median / first.median

    def of_memory(self, contender: str) -> float | None:
        """Returns the part of the memory's speed that the contender reaches. Caches can lift it above 1."""
        if self.memory is None:
            return None
        return self.traffic / self.memory / (self.timings[contender].median * 1e-6)


class Table:
    """Prints the columns of nccl-tests for each contender, and how the first compares with each other one."""

    def __init__(self, title: str, contenders: Sequence[str], memory: bool = False) -> None:
        self.title = title
        self.contenders = contenders
        self.memory = memory

    def head(self) -> None:
        common = f"#{'size':>11} {'count':>11} {'type':>9} {'redop':>6} {'root':>5}"
        units = f"#{'(B)':>11} {'(elements)':>11} {'':>9} {'':>6} {'':>5}"
        names = f"#{'':>46}"
        for contender in self.contenders:
            common += f" |{'time':>9} {'p90':>9} {'p99':>9} {'algbw':>7} {'busbw':>7} {'#wrong':>6}"
            units += f" |{'(us)':>9} {'(us)':>9} {'(us)':>9} {'(GB/s)':>7} {'(GB/s)':>7} {'':>6}"
            names += f" |{contender:^52}"
        for other in self.contenders[1:]:
            common += f" |{'time of ' + other:>15}"
            units += f" |{'/ ' + self.contenders[0]:>15}"
            names += f" |{'':>15}"
        if self.memory:
            common += f" |{'of memory':>10}"
            units += f" |{'speed':>10}"
            names += f" |{'':>10}"
        print(f"# {self.title}", names, common, units, sep="\n", flush=True)

    def row(self, row: Row) -> None:
        text = f" {row.size:>11} {row.count:>11} {row.dtype:>9} {row.op:>6} {row.root:>5}"
        for timing in (row.timings[contender] for contender in self.contenders):
            text += f" |{timing.median:>9.1f} {timing.p90:>9.1f} {timing.p99:>9.1f}"
            text += f" {timing.algorithm_bandwidth:>7.2f} {timing.bus_bandwidth:>7.2f} {timing.wrong:>6}"
        for other in self.contenders[1:]:
            text += f" |{row.ratio(other):>14.1f}x"
        part = row.of_memory(self.contenders[0])
        if part is not None:
            text += f" |{part:>9.0%} "
        print(text, flush=True)


def write_json(path: Path, facts: dict[str, Any], rows: Sequence[Row]) -> None:
    """Writes {"machine": {...}, ..., "rows": [...]}, with microseconds, GB/s and bytes as units."""
    text = json.dumps({"machine": machine(), **facts, "rows": [asdict(row) for row in rows]}, indent=2)
    path.write_text(text + "\n")


def read_json(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """Returns the facts and the rows that write_json() has written.

    Raises:
        ValueError: write_json() has not written the file.
    """
    facts = json.loads(path.read_text())
    try:
        rows = [
            Row(**row | {"timings": {name: Timing(**timing) for name, timing in row["timings"].items()}})
            for row in facts.pop("rows")
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a file that vccl.bench --json wrote: {error!r}") from error
    return facts, rows


def machine() -> dict[str, object]:
    """Returns what a reader of the figures has to know about the machine and the software."""
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
