"""The command line of ``python -m vccl.replay``."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from vccl.replay import chakra, comparison, matching, nccl_tests, scaling, summary
from vccl.replay.files import Job, RecordError, read_job
from vccl.replay.plan import GAPS, Plan, make_plan, recorded_roles

# The command's status.
_FINE, _FOUND, _WRONG = 0, 1, 2

_EPILOG = """\
A record is made with VCCL_RECORD=DIR, vrun --record DIR or vccl.record(DIR). Without --summary, --check,
--compare and --export, the communication is run again on this machine, one process a rank, and compared with
the record. The status is 1 if the replay has failed, or a difference was found, and 2 if the record cannot be
used.
docs/inside/record.md says more.
"""


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 86400 seconds")
    return seconds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m vccl.replay",
        description="Runs the communication of a recorded job again, without its model, or shows it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("record", type=pathlib.Path, help="the directory of the record")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--summary", action="store_true", help="print a table of groups and calls")
    what.add_argument("--check", action="store_true", help="compare the ranks of the record with each other")
    what.add_argument("--compare", type=pathlib.Path, metavar="DIR", help="compare with another record")
    what.add_argument(
        "--export", choices=("chakra", "nccl-tests"), help="write it in another form to --output"
    )
    parser.add_argument("--output", type=pathlib.Path, help="a folder for chakra, a file for nccl-tests")
    parser.add_argument(
        "--gaps", choices=GAPS, help="what ranks do between calls for as long as the job computed there"
    )
    parser.add_argument("--ranks", type=_positive, metavar="N", help="scale the replay to N ranks")
    parser.add_argument("--repeat", type=_positive, default=1, metavar="K", help="make all calls K times")
    parser.add_argument(
        "--device", choices=("recorded", "vdev", "cpu"), default="recorded", help="where the tensors lie"
    )
    parser.add_argument(
        "--timeout", type=_seconds, default=60.0, metavar="S", help="of each call in seconds (default: 60)"
    )
    parser.add_argument(
        "--skip",
        action="append",
        default=[],
        metavar="NAME",
        help="leave out calls of this name (may be repeated)",
    )
    parser.add_argument(
        "--keep", type=pathlib.Path, metavar="DIR", help="keep the record of the replay there"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command, and returns its status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if (options.export is None) != (options.output is None):
        parser.error("--export and --output go together")
    try:
        job = read_job(options.record)
        for problem in job.problems:
            print(f"Note: {problem}.", file=sys.stderr)
        if options.summary:
            print(summary.table(job))
            return _FINE
        if options.check:
            return _check(job)
        if options.compare is not None:
            return _compare(job, read_job(options.compare))
        if options.export is not None:
            return _export(job, options)
        return _play(job, options)
    except (RecordError, OSError) as error:
        print(f"vccl.replay: {error}", file=sys.stderr)
        return _WRONG


def _check(job: Job) -> int:
    found = matching.differences(job)
    hashes = matching.has_hashes(job)
    found += matching.content_differences(job) if hashes else []
    print("\n".join(found) if found else "All ranks have made the same calls.")
    if not hashes:
        print("The record has no hashes of elements (VCCL_RECORD=DIR,hash), so elements were not compared.")
    elif not found:
        print("Where ranks must have the same elements, they have.")
    return _FOUND if found else _FINE


def _compare(job: Job, other: Job) -> int:
    found = comparison.compare(job, other)
    print("\n".join(found) if found else "Both records have the same calls.")
    print(comparison.times(job, other))
    return _FOUND if found else _FINE


def _export(job: Job, options: argparse.Namespace) -> int:
    if options.export == "chakra":
        for left_out in chakra.export(job, options.output):
            print(f"Note: {left_out}", file=sys.stderr)
    else:
        options.output.write_text("\n".join(nccl_tests.lines(job)) + "\n")
    return _FINE


def _play(job: Job, options: argparse.Namespace) -> int:
    for difference in matching.differences(job):
        print(f"In the record: {difference}")
    roles = (
        recorded_roles(job) if options.ranks in (None, job.size) else scaling.scaled_roles(job, options.ranks)
    )
    plan = make_plan(job, roles, frozenset(options.skip))
    if plan.skipped:
        print(f"{plan.skipped} calls are left out (--skip).")
    with tempfile.TemporaryDirectory(prefix="vccl-replay-") as folder:
        target = options.keep or pathlib.Path(folder, "record")
        status = _launch(plan, pathlib.Path(folder), target, options)
        if status != 0:
            print(f"The replay has failed with status {status}. What its ranks said is above.")
        return _report(job, target, plan, options, status)


def _launch(plan: Plan, folder: pathlib.Path, target: pathlib.Path, options: argparse.Namespace) -> int:
    """Runs the plan, which makes a record of its own in `target`. Returns the status of vrun."""
    for rank, its in enumerate(plan.as_dicts()):
        (folder / f"plan-{rank}.json").write_text(json.dumps(its))
    command = [
        sys.executable,
        "-m",
        "vccl.launch.vrun",
        "--cards",
        str(plan.size),
        "-m",
        "vccl.replay.player",
    ]
    command += [str(folder), "--repeat", str(options.repeat), "--device", options.device]
    command += ["--timeout", str(options.timeout), *(["--gaps", options.gaps] if options.gaps else [])]
    sys.stdout.flush()
    return subprocess.run(command, env={**os.environ, "VCCL_RECORD": str(target)}).returncode


def _report(job: Job, target: pathlib.Path, plan: Plan, options: argparse.Namespace, status: int) -> int:
    try:
        replayed = read_job(target)
    except RecordError as error:
        print(f"The replay has left no record: {error}")
        return _FOUND
    same_calls = plan.size == job.size and options.repeat == 1 and not options.skip
    found = comparison.compare(job, replayed) if same_calls else []
    if same_calls:
        print("\n".join(found) if found else "The replay has made the calls of the record.")
    print(comparison.times(job, replayed, options.repeat))
    return _FINE if status == 0 and not found else _FOUND
