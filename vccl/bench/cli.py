"""Reads the command line, and measures collectives or runs another command."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from vccl._device_type import device_type
from vccl.bench import __doc__ as description
from vccl.bench import baseline, graphs, markdown, plot, steps, tune
from vccl.bench.cases import CASES, REDUCE_OPS, Case, MemoryPass, Setting
from vccl.bench.gate import Gate
from vccl.bench.job import world
from vccl.bench.measure import TURNS, Effort, Step, Timing, measure
from vccl.bench.mpi import Mpi
from vccl.bench.report import Row, Table, write_json
from vccl.bench.sizes import parse_size, series

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None  # type: ignore[assignment, misc]

DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
Result = TypeVar("Result")
# These commands start ranks themselves, or need none.
COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "plot": plot.main,
    "table": markdown.main,
    "check": baseline.main,
    "graphs": graphs.main,
    "steps": steps.main,
    "tune": tune.main,
}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m vccl.bench",
        description=description,
        epilog=f"Instead of a collective: {', '.join(COMMANDS)}. Each has a --help of its own.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("collective", choices=CASES)
    parser.add_argument(
        "--backend", default="vccl", help="one or several, compared: vccl,gloo,mpi (default: vccl)"
    )
    parser.add_argument(
        "--device",
        default=device_type(),
        help="cpu, or the type of the cards (default); gloo is always measured on cpu tensors",
    )
    parser.add_argument(
        "--min", type=parse_size, default=4, metavar="SIZE", help="smallest size (default: 4)"
    )
    parser.add_argument(
        "--max", type=parse_size, default="64M", metavar="SIZE", help="largest (default: 64M)"
    )
    parser.add_argument("--factor", type=int, default=4, help="from one size to the next (default: 4)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--op", choices=REDUCE_OPS, default="sum")
    parser.add_argument("--root", type=int, default=0, help="the rank that has or gets everything")
    parser.add_argument(
        "--in-place",
        action="store_true",
        help="a rank's share is in the whole (all_gather, reduce_scatter)",
    )
    parser.add_argument(
        "--memory", action="store_true", help="also what part of the memory's speed, measured in between"
    )
    parser.add_argument("--warmup", type=int, default=5, help="calls before the timed ones (default: 5)")
    parser.add_argument(
        "--iters", type=int, help="timed calls a size (default: as many as fit into --seconds)"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="a size and backend (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes the figures there too")
    args = parser.parse_args(argv)
    args.backends = args.backend.split(",")
    check(args, parser)
    return args


def check(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Exits with a message if arguments do not go together."""
    if len(set(args.backends)) != len(args.backends):
        parser.error(f"--backend {args.backend} names a backend twice")
    if args.backends[0] == "mpi":
        parser.error("--backend mpi comes behind another backend, which it is compared with")
    if "mpi" in args.backends and (args.dtype, args.op, args.root) != ("float32", "sum", 0):
        parser.error("mpi is measured with float32, sum and root 0 only")
    if args.in_place and not CASES[args.collective].in_place_too:
        parser.error(f"--in-place is for all_gather and reduce_scatter, not for {args.collective}")
    if "RANK" not in os.environ:
        parser.error(
            "no ranks: start it with vrun or torchrun, as in: vrun --cards 2 -m vccl.bench all_reduce"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line. Returns 0, or 1 if some element was wrong on some rank."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in COMMANDS:
        return COMMANDS[argv[0]](argv[1:])
    args = parse(argv)
    # Facts about the run go over gloo, so that they do not depend on the backend that is measured.
    dist.init_process_group("gloo")
    try:
        rows = run(args, world())
    finally:
        dist.destroy_process_group()
    return int(any(timing.wrong for row in rows for timing in row.timings.values()))


def run(args: argparse.Namespace, control: dist.ProcessGroup) -> list[Row]:
    """Measures every size. Rank 0 prints the table and writes the JSON."""
    contest = Contest(args, control)
    facts = {
        "collective": args.collective,
        "ranks": control.size(),
        "hosts": host_count(control),
        "devices": contest.devices,
        "in_place": args.in_place,
    }
    where = ", ".join(f"{name} on {device}" for name, device in contest.devices.items())
    title = f"{args.collective}, {control.size()} ranks, {facts['hosts']} host(s): {where}"
    table = Table(title, args.backends, args.memory)
    speaks = control.rank() == 0

    if speaks:
        table.head()
    rows = []
    sizes = [0] if args.collective == "barrier" else list(series(args.min, args.max, args.factor))
    try:
        for number, size in enumerate(sizes):
            with progress(f"{size} bytes, {number + 1} of {len(sizes)}", speaks) as step:
                rows.append(contest.measure(size, step))
            if speaks:
                table.row(rows[-1])
    finally:
        contest.close()
    if speaks and args.json:
        write_json(args.json, facts, rows)
    return rows


class Contest:
    """Measures the contenders at one size after another."""

    def __init__(self, args: argparse.Namespace, control: dist.ProcessGroup) -> None:
        self.args = args
        self.control = control
        inside = [backend for backend in args.backends if backend != "mpi"]
        self.settings = {backend: make_setting(args, backend, control) for backend in inside}
        self.devices = {backend: setting.device.type for backend, setting in self.settings.items()}
        self.gate = Gate(control)
        self.mpi: Mpi | None = None
        if "mpi" in args.backends:
            agreed(self._start_mpi, control)
            self.devices["mpi"] = "cpu"
        self.effort = Effort(args.warmup, args.iters, args.seconds)

    def _start_mpi(self) -> None:
        self.mpi = Mpi(self.control.size())

    def _measure_with_mpi(self, case: Case) -> Timing:
        assert self.mpi is not None
        args = self.args
        return self.mpi.measure(args.collective, case, Effort(0, args.iters, args.seconds))

    def measure(self, size: int, step: Step) -> Row:
        args = self.args
        cases = [CASES[args.collective](setting, size) for setting in self.settings.values()]
        passes = [MemoryPass(setting, size) for setting in list(self.settings.values())[: int(args.memory)]]
        timings = measure([*cases, *passes], self.gate, self.control, self.effort, step)
        found = dict(zip(self.settings, timings, strict=False))
        if "mpi" in args.backends:
            found["mpi"] = agreed(lambda: self._measure_with_mpi(cases[0]), self.control)
        memory = passes[0].traffic() / (timings[-1].median * 1e-6) if passes else None
        return make_row(args, cases[0], {name: found[name] for name in args.backends}, memory)

    def close(self) -> None:
        if self.mpi is not None:
            self.mpi.close()


def agreed(act: Callable[[], Result], control: dist.ProcessGroup) -> Result:
    """Calls `act` on rank 0 alone. Every rank returns what it returns, or raises what it raises."""
    outcome: list[Any] = [None, None]
    if control.rank() == 0:
        try:
            outcome[0] = act()
        except Exception as error:
            outcome[1] = error
    dist.broadcast_object_list(outcome, group_src=0, group=control)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


@contextlib.contextmanager
def progress(text: str, speaks: bool) -> Iterator[Step]:
    """Shows a bar if standard error is a terminal and tqdm is installed. Yields what to call at each step."""
    if tqdm is None:
        yield lambda: None
        return
    with tqdm(total=TURNS, desc=text, leave=False, disable=not (speaks and sys.stderr.isatty())) as bar:

        def step() -> None:
            bar.update()

        yield step


def make_setting(args: argparse.Namespace, backend: str, control: dist.ProcessGroup) -> Setting:
    """Makes a group for the backend, and chooses the device of this rank."""
    device = torch.device("cpu")
    if backend != "gloo" and args.device != "cpu":
        device = torch.device(args.device, int(os.environ.get("LOCAL_RANK", "0")))
        torch.accelerator.set_device_index(device.index)
    dtype = getattr(torch, args.dtype)
    group = dist.new_group(backend=backend)
    return Setting(control.rank(), control.size(), group, device, dtype, args.op, args.root, args.in_place)


def make_row(args: argparse.Namespace, case: Case, timings: dict, memory: float | None) -> Row:
    op = args.op if case.uses_op else "none"
    root = args.root if case.uses_root else -1
    return Row(case.size, case.count, args.dtype, op, root, timings, case.traffic(), memory)


def host_count(control: dist.ProcessGroup) -> int:
    """Returns how many hosts, real or pretended, torchrun counts."""
    return control.size() // int(os.environ.get("LOCAL_WORLD_SIZE", control.size()))
