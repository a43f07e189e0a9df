"""Measures every algorithm beside the others, and writes the table that the selector chooses by.

    python -m vccl.bench tune --write      # everything, into docs/bench/tune.json, and from it the table
    python -m vccl.bench tune --add --write                                     # more passes, at another time
    python -m vccl.bench tune --ranks 4 --collectives all_reduce,broadcast      # a part
    python -m vccl.bench tune --hosts 2 --ranks 2,4 --write     # what is chosen across hosts
    python -m vccl.bench tune --rewrite    # the table, from what was measured

The command starts the ranks itself. Card memory is "mapped", and CPU memory is "staged". With --hosts, the
ranks are divided among that many pretended hosts, which talk over ZeroMQ on the loopback interface. Each
family of algorithms has a group, which is made with a VCCL_ALGO that asks for it. At every size the groups
take turns within one run. Sizes come in steps of 4, and in steps of 2 where the best algorithm changes.
Everything is measured in several passes, so that other activity on the machine affects only one of them.

A virtual machine moves between states, in which its cores share a cache or do not, and some algorithms suffer
from that more than others. So a table should come from runs at several times, with --add.
"""

import argparse
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from vccl import _C
from vccl.bench.cases import CASES, Case, Setting
from vccl.bench.gate import Gate
from vccl.bench.job import run_ranks, world
from vccl.bench.measure import Effort, measure
from vccl.bench.report import machine
from vccl.bench.sizes import format_size, parse_size, series
from vccl.bench.tuned_table import (
    COLLECTIVES,
    Measured,
    Section,
    cheapest,
    header_text,
    read_measured,
    sections,
    write_measured,
)

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None  # type: ignore[assignment, misc]

SMALLEST, STEP = 16, 4
DEVICES = {"mapped": "vdev", "staged": "cpu"}
HOPELESS = 2.0  # an algorithm that takes so many times the best time is measured in the first pass only
CHECKED = 1 << 18  # bytes up to which results are compared with the known answer
FACTS = ("cpu", "cores")  # one table is made of measurements that agree in these


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m vccl.bench tune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=numbers, default="2,4,8", help="default: 2,4,8")
    parser.add_argument(
        "--hosts", type=int, default=1, help="pretended hosts that the ranks are on (default: 1)"
    )
    parser.add_argument("--collectives", type=names(COLLECTIVES), default=",".join(COLLECTIVES))
    parser.add_argument("--memories", type=names(tuple(DEVICES)), default=",".join(DEVICES))
    parser.add_argument("--max", type=parse_size, default="16M", metavar="SIZE", help="default: 16M")
    parser.add_argument("--passes", type=int, default=3, help="default: 3")
    parser.add_argument(
        "--seconds", type=float, default=0.1, help="for an algorithm, at a size and in a pass (default: 0.1)"
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=Path("docs/bench/tune.json"),
        metavar="FILE",
        help="keeps what is measured, beside what it holds already (default: docs/bench/tune.json)",
    )
    parser.add_argument(
        "--table",
        type=Path,
        default=Path("csrc_pg/collectives/selection/tuned_table.hpp"),
        metavar="FILE",
        help="default: csrc_pg/collectives/selection/tuned_table.hpp",
    )
    parser.add_argument(
        "--add",
        action="store_true",
        help="adds passes to those in FILE, which are replaced otherwise",
    )
    parser.add_argument("--write", action="store_true", help="writes the table, from all that FILE holds")
    parser.add_argument("--rewrite", action="store_true", help="writes the table, and measures nothing")
    args = parser.parse_args(argv)
    if min(args.ranks) < 2 or args.passes < 1 or args.max < SMALLEST:
        parser.error(f"there is nothing to choose below 2 ranks, 1 pass and {SMALLEST} bytes")
    if args.hosts < 1 or min(args.ranks) < args.hosts:
        parser.error(f"every host needs a rank: --hosts {args.hosts} is not 1 to {min(args.ranks)}")
    if args.rewrite and not args.json.is_file():
        parser.error(f"there is no {args.json}: measure first")
    return args


def kinds(args: argparse.Namespace) -> list[str]:
    """Returns the rows of the table that are measured, by the kind of memory."""
    return [memory if args.hosts == 1 else f"{memory}_across" for memory in args.memories]


def numbers(text: str) -> list[int]:
    return sorted({int(part) for part in text.split(",")})


def names(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    def parse_names(text: str) -> list[str]:
        chosen = text.split(",")
        unknown = [name for name in chosen if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(allowed)}")
        return [name for name in allowed if name in chosen]

    return parse_names


def main(argv: Sequence[str]) -> int:
    """Runs the command, and returns 0."""
    args = parse(argv)
    if "RANK" in os.environ:
        return measure_as_rank(args)
    if not args.rewrite:
        kept = keep(args)
        for ranks in args.ranks:
            for one in run(args, ranks):
                if args.add and one.key in kept:
                    kept[one.key].add_all(one)
                else:
                    kept[one.key] = one
            # It is written after each job, so that nothing is lost if a later job fails.
            write_measured(args.json, facts(), list(kept.values()))
        print(f"wrote {args.json}")
    measured_on, measured = read_measured(args.json)
    if args.write or args.rewrite:
        args.table.write_text(header_text(measured_on, measured))
        print(f"wrote {args.table}")
        for section in sections(measured):
            print(described(section))
    return 0


def facts() -> dict[str, object]:
    return {name: fact for name, fact in machine().items() if name in FACTS}


def keep(args: argparse.Namespace) -> dict[tuple, Measured]:
    """Returns the measurements in the file of --json, by key.

    Raises:
        SystemExit: they come from another machine, and not all of them are replaced.
    """
    if not args.json.is_file():
        return {}
    before, measured = read_measured(args.json)
    if before == facts():
        return {one.key: one for one in measured}
    asked = itertools.product(args.collectives, kinds(args), args.ranks)
    replaced = set() if args.add else {Measured(*one, {}).key for one in asked}
    if any(one.key not in replaced for one in measured):
        raise SystemExit(
            f"{args.json} was measured on {before}, and this is {facts()}: measure everything anew, or give "
            "another --json"
        )
    return {}


def described(section: Section) -> str:
    """Returns a text such as "all_reduce, mapped, 1 to 2 ranks: oneshot to 1K, then direct"."""
    ranks = f"{section.fewest} to {section.most}" if section.most else f"{section.fewest} or more"
    ranges = [
        one.algorithm if one.last is None else f"{one.algorithm} to {format_size(one.last)}"
        for one in section.ranges
    ]
    return f"{section.collective}, {section.memory}, {ranks} ranks: {', then '.join(ranges)}"


def run(args: argparse.Namespace, ranks: int) -> list[Measured]:
    """Measures in a job, and returns what it has measured.

    Raises:
        subprocess.CalledProcessError: the job failed. It has printed the reason.
    """
    with tempfile.TemporaryDirectory(prefix="vccl-tune-") as folder:
        path = Path(folder) / "measured.json"
        options = {
            "--collectives": ",".join(args.collectives),
            "--memories": ",".join(args.memories),
            "--hosts": args.hosts,
            "--ranks": ranks,
            "--max": args.max,
            "--passes": args.passes,
            "--seconds": args.seconds,
            "--json": path,
        }
        # Each option is one word, because torchrun takes a bare --max for one of its own options.
        words = [f"{name}={value}" for name, value in options.items()]
        # Variables that the user has set for other jobs must not choose the algorithms here.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("VCCL_")}
        run_ranks(ranks, ["tune", *words], environment)
        return read_measured(path)[1]


def measure_as_rank(args: argparse.Namespace) -> int:
    dist.init_process_group("gloo")  # facts about the run go there
    if args.hosts > 1:
        os.environ["VCCL_HOSTID"] = str(dist.get_rank() * args.hosts // dist.get_world_size())
    try:
        contest = Contest(args, world())
        found = contest.run()
        if dist.get_rank() == 0:
            write_measured(args.json, facts(), found)
    finally:
        dist.destroy_process_group()
    return 0


class Contest:
    """Makes the groups of the families, and measures all that was asked for. Runs on every rank."""

    def __init__(self, args: argparse.Namespace, control: dist.ProcessGroup) -> None:
        self.args = args
        self.control = control
        self.gate = Gate(control)
        card = torch.device("vdev", int(os.environ.get("LOCAL_RANK", "0")))
        torch.accelerator.set_device_index(card.index)
        self.devices = {"vdev": card, "cpu": torch.device("cpu")}
        self.groups = {family: self._make_group(family, card) for family in families()}
        self.found = {
            (collective, memory): Measured(collective, memory, control.size(), {})
            for collective in args.collectives
            for memory in kinds(args)
        }

    def _make_group(self, family: str, card: torch.device) -> dist.ProcessGroup:
        """Makes a group that uses the algorithms of a family for the collectives that the family has."""
        os.environ["VCCL_ALGO"] = ";".join(f"{collective}:{family}" for collective in families()[family])
        try:
            group = dist.new_group(backend="vccl")
            # The first call makes the communicator of the card.
            dist.all_reduce(torch.zeros(1, device=card), group=group)
            torch.accelerator.synchronize()
        finally:
            del os.environ["VCCL_ALGO"]
        return group

    def run(self) -> list[Measured]:
        for turn in range(self.args.passes):
            rows = [(one, size) for one in self.found.values() for size in self.sizes(one, first=turn == 0)]
            for one, size in progress(rows, f"pass {turn + 1}", self.control.rank() == 0):
                self.add(one, size, first=turn == 0)
        return list(self.found.values())

    def sizes(self, one: Measured, first: bool) -> list[int]:
        """Returns the sizes of a pass. Later passes add sizes between two with different best algorithms."""
        if one.collective == "barrier":
            return [0]
        if first:
            return list(series(SMALLEST, self.args.max, STEP))
        _, ranges = cheapest(one.costs())
        changes = [part.last * 2 for part in ranges if part.last is not None]
        return sorted({*one.times, *changes})

    def add(self, one: Measured, size: int, first: bool) -> None:
        """Measures once more, and adds what it finds to `one`."""
        able = self.capable(one, size)
        cases = {
            name: self.make_case(one, name, size)
            for name in able
            if first or size not in one.times or self.has_hope(one.times[size], name)
        }
        if len(cases) < 2 and not first:
            return
        effort = Effort(warmup=2, seconds=self.args.seconds, fewest=5, most=300)
        timings = measure(list(cases.values()), self.gate, self.control, effort, check=size <= CHECKED)
        for (name, case), timing in zip(cases.items(), timings, strict=True):
            if timing.wrong:
                raise RuntimeError(f"{name} {one.collective} of {case.size} bytes gave wrong results")
        found = {name: rounded(timing.median) for name, timing in zip(cases, timings, strict=True)}
        one.add(size, found, able)

    def has_hope(self, times: dict[str, list], name: str) -> bool:
        return times[name][0] <= HOPELESS * min(series[0] for series in times.values())

    def make_case(self, one: Measured, family: str, size: int) -> Case:
        device = self.devices[DEVICES[one.memory.removesuffix("_across")]]
        rank = self.control.rank()
        setting = Setting(rank, one.ranks, self.groups[family], device, torch.float32)
        return CASES[one.collective](setting, size)

    def capable(self, one: Measured, size: int) -> list[str]:
        """Returns the families that have an algorithm for it. Others would leave the call to these."""
        return _C._capable_families(
            one.collective, size, one.ranks, one.memory.startswith("mapped"), one.memory.endswith("_across")
        )


def families() -> dict[str, list[str]]:
    """Returns the collectives of each family for which it has an algorithm."""
    found: dict[str, list[str]] = {}
    for family, collective in sorted(_C._algorithms()):
        found.setdefault(family, []).append(collective)
    return found


def rounded(time: float) -> float:
    """Returns a time with three digits, which is more than its accuracy."""
    found = float(f"{time:.3g}")
    return int(found) if found.is_integer() else found


def progress(rows: Sequence[tuple[Measured, int]], text: str, speaks: bool) -> Iterator[tuple[Measured, int]]:
    """Yields the rows, and shows a bar if standard error is a terminal and tqdm is installed."""
    if tqdm is None:
        yield from rows
        return
    with tqdm(rows, leave=False, disable=not (speaks and sys.stderr.isatty())) as bar:
        for one, size in bar:
            bar.set_description(f"{one.ranks} ranks, {text}: {one.collective}, {one.memory}")
            yield one, size
