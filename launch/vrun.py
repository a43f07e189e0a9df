"""Reads the command line of vrun, and runs it on one host.

vrun is torchrun: the same agent watches the ranks, and vrun accepts every option of torchrun. It forks the
ranks from a process that has imported torch (launch/template.py). It adds
``--cards``, ``--hosts`` (launch/hosts.py), ``--netns`` (launch/network.py), a note if no card was used
(launch/card_use.py), ranks at the same addresses (launch/addresses.py), the rank in front of lines
(launch/relay.py), and a quick end on Ctrl-C (launch/interruption.py). Its defaults choose the rendezvous and
OMP_NUM_THREADS. ``--keep`` and ``--stop`` are for the command ``vrun`` (vccl_entry/vrun.py), which has read
them before this module is imported.
"""

import argparse
import atexit
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import NoReturn

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.version import __version__ as torch_version

from vccl import __version__, _device_type, _torch_version

from . import (
    addresses,
    announcement,
    card_use,
    checks,
    exit_barrier,
    failure,
    faults,
    hosts,
    links,
    rendezvous,
    schedules,
)
from .announcement import Announcement
from .forked_rank import folder_of, keep_operators_at_exit, leave
from .interruption import PATIENCE, Interruption, signal_behind
from .relay import relay_for
from .starting import PreloadError, Template, starting_ranks

DESCRIPTION = """\
Starts a script once per card: torchrun with defaults that suit virtual cards.

  vrun train.py --epochs 3              as many ranks as there are cards, at most one per core
  vrun --cards 4 train.py               four ranks, RANK and LOCAL_RANK 0 to 3
  vrun --hosts 2 --cards 2 train.py     two pretended hosts of two ranks each
  vrun --hosts 2 --cards 2 --netns --link-bandwidth 1gbit train.py     with a network between them
  vrun --cards 2 -m vccl.bench all_reduce
  vrun --as-cuda --cards 2 train.py     a script for CUDA and NCCL, as it is
  vrun --cards 2 --faults rank=1,op=all_reduce,n=3,do=kill train.py     a rank dies on purpose
  vrun --keep --cards 2 train.py        the next run with --keep need not import torch
"""
EPILOG = """\
Every option of torchrun may be given too, before the script (torchrun --help lists them). Without one that
concerns the rendezvous (--nnodes, --rdzv-*, --master-*, --node-rank) the run is a standalone one.
OMP_NUM_THREADS is set to cores / ranks, VDEV_DEVICE_COUNT to N where N is more than 8, and
VDEV_MACHINE_RANKS to N x H where H is more than 1, unless they are set already. Ranks are forked from a
process that has imported torch and what --preload names. With --no-preload each rank is a Python of its own,
as with torchrun; its ranks start without address space randomization (setarch -R) where that is permitted,
because ranks that share a core run Python twice as fast when their code lies at the same addresses. Where
--cards was given and no rank used a card, vrun says so on stderr when the job has succeeded. --as-cuda sets
VDEV_POSE=cuda (docs/cuda.md). The exit status is that of the first rank that failed, and 128 + n where
signal n ended it. After Ctrl-C ranks have 0.6 seconds. --keep leaves a process that has imported torch, which
ends after half an hour without use (VCCL_KEEP_SECONDS) or with --stop. docs/starting.md says more.
"""
USUAL_CARDS = 8  # what a machine has if VDEV_DEVICE_COUNT is not set
# How often the agent looks after its ranks. torchrun's tenth of a second is much of a short test.
MONITOR_SECONDS = 0.02
RENDEZVOUS = ("nnodes", "node_rank", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "master_addr", "master_port")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line (default: the process's own) and returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = parse(argv)
    wrong = (
        checks.what_is_wrong(args)
        or faults.what_is_wrong(args.faults)
        or schedules.what_is_wrong(args.schedule)
    )
    if wrong:
        print(f"vrun: {wrong}", file=sys.stderr)
        return 2
    if args.record is not None:
        os.environ["VCCL_RECORD"] = args.record
    if args.sanitize:
        os.environ.setdefault("VDEV_SANITIZER", "1")
    if args.as_cuda and _device_type.device_type() != "cuda":
        try:
            _begin_again_in_pose(argv)
        except _torch_version.PoseRefused as refusal:
            print(f"vrun: {refusal}", file=sys.stderr)
            return 1
    if not (args.preload_torch and (args.hosts == 1 or args.host is not None)):
        return run(argv, args, None)
    # Now, before anything asks about cards or starts a thread: see launch/template.py.
    template = Template(args.preload, folder_of(None if args.module else args.training_script))
    try:
        return run(argv, args, template)
    finally:
        template.close()


def _begin_again_in_pose(argv: Sequence[str]) -> NoReturn:
    """Runs the command line in a process whose cards pose as CUDA, which they learn when they are loaded."""
    os.environ["VDEV_POSE"] = "cuda"
    _torch_version.check_pose()
    os.execv(sys.executable, [sys.executable, "-m", "vccl.launch.vrun", *argv])


def run(argv: Sequence[str], args: argparse.Namespace, template: Template | None) -> int:
    """Runs the command line, which has been parsed, and returns the exit status."""
    count_ranks(args)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // (args.cards * args.hosts))))
    if args.cards > USUAL_CARDS:
        os.environ.setdefault("VDEV_DEVICE_COUNT", str(min(args.cards, checks.MOST_CARDS)))
    if args.hosts > 1:  # pretended hosts share the memory of this one
        os.environ.setdefault("VDEV_MACHINE_RANKS", str(args.cards * args.hosts))
    if args.host is not None:
        with hosts.host_of(args):
            return run_agent(args, template)
    with (
        card_use.watched() as used,
        faults.told(args.faults),
        schedules.announced(args.schedule, args.cards * args.hosts) as schedule,
    ):
        status = run_agent(args, template) if args.hosts == 1 else hosts.run(argv, args)
        # A job that failed has printed more important things, and may have failed before it used a card.
        if args.asked_for_cards and status == 0 and not used():
            print(card_use.none_used(_device_type.device_type()), file=sys.stderr)
        if schedule and status != 0:
            print(f"vrun: orders were drawn. To play them again: --schedule {schedule}", file=sys.stderr)
    return status


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Returns torchrun's namespace with the defaults of vrun, and with these attributes.

    ``hosts`` is the number of hosts, and ``asked_for_cards`` tells whether --cards was given.
    ``preload_torch`` tells whether ranks are forked, and ``preload`` which modules they find imported.
    ``own_rendezvous`` tells whether the ranks are all on this machine.
    ``link`` tells what emulated links are like. ``host``, ``port`` and ``parent`` are set in the agent of a
    pretended host only. ``count_ranks`` sets the rest.
    """
    parser = torchrun.get_args_parser()
    parser.prog = "vrun"
    # Otherwise argparse takes the script's own --max for an abbreviation of --max-restarts, and refuses it.
    parser.allow_abbrev = False
    own = argparse.ArgumentParser(
        prog="vrun",
        usage="vrun [--cards N] [--hosts H] [torchrun options] script [arguments of the script]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for each in (parser, own):
        each.add_argument(
            "--cards", type=positive, metavar="N", help="ranks a host (torchrun's --nproc-per-node)"
        )
        each.add_argument(
            "--hosts", type=positive, default=1, metavar="H", help="pretended hosts, each with N ranks"
        )
        each.add_argument(
            "--preload", action="append", default=[], metavar="M", help="module that ranks find imported"
        )
        each.add_argument("--no-preload", action="store_true", help="let every rank import torch by itself")
        each.add_argument("--keep", action="store_true", help="keep a server for the next run with --keep")
        each.add_argument("--as-cuda", action="store_true", help="let the cards of the ranks pose as CUDA")
        each.add_argument("--sanitize", action="store_true", help="look for races in every rank")
        each.add_argument("--faults", metavar="PLAN", help="faults that strike the ranks, or @file with them")
        each.add_argument(
            "--schedule", metavar="TEXT", help="draw orders from a seed: random:SEED or pct:DEPTH:SEED"
        )
        each.add_argument(
            "--record", metavar="DIR", help="record the communication of the job in DIR (VCCL_RECORD)"
        )
        each.add_argument(
            "--version",
            action="version",
            version=f"vrun of vccl {__version__}, torch {torch_version}",
            help="print the versions of vccl and torch",
        )
        each.add_argument("--stop", action="store_true", help="end the servers, and run nothing")
        each.add_argument(
            "--prefix",
            action=argparse.BooleanOptionalAction,
            help="put the rank before lines (usual on a terminal)",
        )
        each.add_argument(
            "--verbose", action="store_true", help="say when ranks are up (usual on a terminal)"
        )
        links.add_options(each)
        for name in ("--host", "--port", "--parent"):  # of the agent of a pretended host
            each.add_argument(name, type=int, help=argparse.SUPPRESS)
    # The forty options of torchrun would bury those of vrun.
    parser.print_help = own.print_help  # type: ignore[method-assign]
    parser.usage = own.usage
    # What is given counts, even if it is what torchrun takes by default. torchrun also reads PET_* variables.
    given = {"nproc_per_node": None, "monitor_interval": MONITOR_SECONDS}
    parser.set_defaults(
        **{name: value for name, value in given.items() if f"PET_{name.upper()}" not in os.environ}
    )
    args = parser.parse_args(argv)

    # What a variable says is the parser's default.
    chosen = [
        name
        for name in RENDEZVOUS
        if getattr(args, name) != parser.get_default(name) or f"PET_{name.upper()}" in os.environ
    ]
    if args.hosts > 1 and (chosen or args.standalone):
        name = (chosen or ["standalone"])[0]
        variable = f"PET_{name.upper()}"
        option = variable if variable in os.environ else "--" + name.replace("_", "-")
        parser.error(f"{option} does not go with --hosts, which makes a rendezvous of its own")
    links.check(parser, args)
    args.own_rendezvous = not chosen  # a standalone one, or that of pretended hosts
    if not chosen:
        args.standalone = args.hosts == 1

    args.asked_for_cards = args.cards is not None
    if args.cards and args.nproc_per_node not in (None, str(args.cards)):
        parser.error(f"--cards {args.cards} and --nproc-per-node {args.nproc_per_node} contradict each other")
    for option, given in (("--preload", args.preload), ("--keep", args.keep)):
        if args.no_preload and given:
            parser.error(f"{option} and --no-preload contradict each other")
    # Without autoload a script finds no cards unless it imports vccl. This process has imported it.
    autoload = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1"
    # Options of Python, such as -O, are this process's alone.
    options = sys.orig_argv[1:2] not in ([], ["-m"]) and sys.orig_argv[1].startswith("-")
    args.preload_torch = autoload and not options and not args.no_preload
    return args


def count_ranks(args: argparse.Namespace) -> None:
    """Sets ``cards``, the number of ranks of a host. This may ask about cards."""
    if args.nproc_per_node is not None:
        args.cards = torchrun.determine_local_world_size(args.nproc_per_node)
    elif not args.cards:
        args.cards = default_cards(args.hosts)
    args.nproc_per_node = str(args.cards)


def run_agent(args: argparse.Namespace, template: Template | None) -> int:
    """Runs one torchrun agent in this process. Returns the exit status."""
    # Who gives torchrun a time for ranks to end means Ctrl-C as well.
    own_time = args.shutdown_timeout is not None or "TORCH_ELASTIC_SHUTDOWN_TIMEOUT" in os.environ
    interruption = Interruption(None if own_time else PATIENCE)
    relay = relay_for(args.prefix, args.cards, args.hosts, args.host)
    up = Announcement(args, relay)
    try:
        with (
            log_folder(args),
            addresses.alike(),
            rendezvous.made_here(args),
            interruption.handled(),
            exit_barrier.hears_signals(),
            relay.running() if relay else contextlib.nullcontext(),
            starting_ranks(template, interruption, relay, up),
        ):
            torchrun.run(args)
    except PreloadError as error:
        print(f"vrun: {error}", file=sys.stderr)
        return 1
    except ChildFailedError as error:
        first = error
    except SignalException as error:
        return 128 + int(error.sigval)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except RuntimeError as error:
        # Torchrun cleans up what it has only begun to start, and the error of that hides the signal.
        number = signal_behind(error)
        if number is None:
            raise
        return 128 + number
    else:
        return 0
    print(failure.describe(first), file=sys.stderr)
    status = first.get_first_failure()[1].exitcode
    return status if status > 0 else 128 - status


@contextlib.contextmanager
def log_folder(args: argparse.Namespace) -> Iterator[None]:
    """Makes a folder for the logs if the command line names none, and removes it if nothing was logged there.

    torchrun itself leaves a folder behind for every run.
    """
    if args.log_dir is not None:
        yield
        return
    args.log_dir = tempfile.mkdtemp(prefix="torchelastic_")
    try:
        yield
    finally:
        if not any(files for *_, files in os.walk(args.log_dir)):
            shutil.rmtree(args.log_dir, ignore_errors=True)


def default_cards(host_count: int) -> int:
    """Returns how many ranks a host gets: one for each card, but no more than its part of the cores."""
    import torch

    share = max(1, cores() // host_count)
    return min(torch.accelerator.device_count(), share) if torch.accelerator.is_available() else share


def cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def positive(text: str) -> int:
    """Reads a number above 0, as a type of argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


def command(started_as: int | None = None) -> NoReturn:
    """Runs the command line of this process, and ends it.

    Args:
        started_as: the process that the user has started, if not this one.
    """
    announcement.started_as = started_as
    status = main()
    keep_operators_at_exit()
    atexit._run_exitfuncs()
    leave(status)


if __name__ == "__main__":
    command()
