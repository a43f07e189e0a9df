"""The command line: what to measure, on which backends and devices."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from vccl.bench import __doc__ as description
from vccl.bench.cases import CASES, REDUCE_OPS, Case, Setting
from vccl.bench.gate import Gate
from vccl.bench.measure import Effort, measure
from vccl.bench.report import Row, Table, write_json
from vccl.bench.sizes import parse_size, series

DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="vccl.bench", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collective", choices=CASES)
    parser.add_argument(
        "--backend", default="vccl", help="one or several, compared: vccl,gloo (default: vccl)"
    )
    parser.add_argument(
        "--device", default="vdev", help="vdev or cpu; gloo is always measured on cpu tensors"
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
    parser.add_argument("--root", type=int, default=0, help="the rank that broadcasts")
    parser.add_argument("--warmup", type=int, default=5, help="calls before the timed ones (default: 5)")
    parser.add_argument(
        "--iters", type=int, help="timed calls a size (default: as many as fit into --seconds)"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="a size and backend (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes the figures there too")
    args = parser.parse_args(argv)
    args.backends = args.backend.split(",")
    if len(set(args.backends)) != len(args.backends):
        parser.error(f"--backend {args.backend} names a backend twice")
    if "RANK" not in os.environ:
        parser.error(
            "no ranks: start it with vrun or torchrun, as in: vrun --cards 2 -m vccl.bench all_reduce"
        )
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 if some element was wrong somewhere."""
    args = parse(argv)
    # Facts about the run go over gloo, whatever is measured: a backend is not asked to vouch for itself.
    dist.init_process_group("gloo")
    try:
        rows = run(args, dist.group.WORLD)
    finally:
        dist.destroy_process_group()
    return int(any(timing.wrong for row in rows for timing in row.timings.values()))


def run(args: argparse.Namespace, control: dist.ProcessGroup) -> list[Row]:
    """Measures every size and, on rank 0, prints the table and writes the JSON."""
    settings = {backend: make_setting(args, backend, control) for backend in args.backends}
    gate = Gate(control)
    effort = Effort(args.warmup, args.iters, args.seconds * len(settings))
    facts = {"collective": args.collective, "ranks": control.size(), "hosts": host_count(control)}
    devices = {backend: setting.device.type for backend, setting in settings.items()}
    where = ", ".join(f"{backend} on {device}" for backend, device in devices.items())
    table = Table(
        f"{args.collective}, {control.size()} ranks, {facts['hosts']} host(s): {where}", args.backends
    )
    speaks = control.rank() == 0

    if speaks:
        table.head()
    rows = []
    sizes = [0] if args.collective == "barrier" else series(args.min, args.max, args.factor)
    for size in sizes:
        cases = [CASES[args.collective](setting, size) for setting in settings.values()]
        timings = measure(cases, gate, control, effort)
        rows.append(make_row(args, cases[0], dict(zip(args.backends, timings, strict=True))))
        if speaks:
            table.row(rows[-1])
    if speaks and args.json:
        write_json(args.json, facts | {"devices": devices}, rows)
    return rows


def make_setting(args: argparse.Namespace, backend: str, control: dist.ProcessGroup) -> Setting:
    """A group of its own for the backend, with a device of the rank's own."""
    device = torch.device("cpu")
    if backend != "gloo" and args.device != "cpu":
        device = torch.device(args.device, int(os.environ.get("LOCAL_RANK", "0")))
        torch.accelerator.set_device_index(device.index)
    dtype = getattr(torch, args.dtype)
    group = dist.new_group(backend=backend)
    return Setting(control.rank(), control.size(), group, device, dtype, args.op, args.root)


def make_row(args: argparse.Namespace, case: Case, timings: dict) -> Row:
    op = args.op if case.uses_op else "none"
    root = args.root if case.uses_root else -1
    return Row(case.size, case.count, args.dtype, op, root, timings)


def host_count(control: dist.ProcessGroup) -> int:
    """Hosts, real or pretended, as torchrun counts them."""
    return control.size() // int(os.environ.get("LOCAL_WORLD_SIZE", control.size()))
