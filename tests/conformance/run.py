"""Runs PyTorch's own test suite of torch.distributed with vccl, and compares the outcome with expected.toml.

    python tests/conformance/run.py                              # everything: every device, 2, 3 and 4 ranks
    python tests/conformance/run.py --devices vdev --worlds 2    # a part of it
    python tests/conformance/run.py --tests test_all_reduce_sum  # single tests
    python tests/conformance/run.py --backend gloo --worlds 2    # another backend, for comparison: no list

Exits with 1 if a test is skipped or fails that the list does not name for that device and number of ranks, if
a listed one passes, or one is skipped or fails for another reason than listed.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence

import expected

# "cuda": cards that pose as CUDA, and the backend nccl.
DEVICES = ["cpu", "vdev", "cuda"]
HERE = pathlib.Path(__file__).parent
# Bounds: of a test (upstream has longer ones for some), and of all tests on one device with one number of
# ranks. The first is longer than the 60 seconds that upstream gives a group: the backend's own error is seen.
TEST_SECONDS = 90
RUN_SECONDS = 1800


def results(
    backend: str, device: str, world: int, tests: Sequence[str], log: pathlib.Path, suite: str | None = None
) -> Iterator[dict]:
    """Runs tests in a process of their own; yields {test, outcome, text, seconds} as each ends.

    Args:
        tests: names; all tests if there are none.
        log: file for what the ranks print.
        suite: "module:class" with the tests, in place of upstream's.

    Raises:
        RuntimeError: the process ended before all tests were run.
    """
    read, write = os.pipe()
    command = [sys.executable, HERE / "worker.py", "--backend", backend, "--device", device]
    command += ["--world", world, "--results", write]
    if tests:
        command += ["--tests", json.dumps(list(tests))]
    if suite:
        command += ["--suite", suite]
    # Ranks are forked: no thread may be running, hence none of a pool's.
    environment = {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(TEST_SECONDS),
    }
    if device == "cuda":
        environment["VDEV_POSE"] = "cuda"
    with open(log, "w") as output:
        worker = subprocess.Popen(
            ["timeout", "--kill-after=10", str(RUN_SECONDS), *map(str, command)],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            pass_fds=[write],
            env={**os.environ, **environment},
        )
    os.close(write)
    try:
        with open(read) as lines:
            for line in lines:
                yield json.loads(line)
    except BaseException:  # the caller has enough, too
        worker.terminate()
        raise
    finally:
        status = worker.wait()
    if status:
        raise RuntimeError(f"the run ended with status {status}; what it printed is in {log}")


def run(options: argparse.Namespace, entries: list[expected.Entry], logs: pathlib.Path) -> bool:
    """Prints a line for each device and number of ranks; whether all was as listed."""
    agreed = True
    row = "{:6} {:5} {:>6} {:>6} {:>8} {:>8} {:>7}  {}"
    print(row.format("device", "ranks", "tests", "ran", "passed", "skipped", "failed", "against the list"))
    for device in options.devices:
        for world in options.worlds:
            log = logs / f"{options.backend}-{device}-{world}.log"
            done = []
            for result in results(options.backend, device, world, options.tests, log):
                done.append(result)
                if options.verbose:
                    print(f"  {result['test']}: {result['outcome']} in {result['seconds']} s", flush=True)
            (logs / f"{options.backend}-{device}-{world}.json").write_text(json.dumps(done, indent=1))
            count = Counter(result["outcome"] for result in done)
            lines = []
            if options.backend == "vccl":
                lines = expected.differences(entries, device, world, done)
                if not options.tests:
                    lines += expected.unknown(entries, done)
            agreed &= not lines
            ran = len(done) - count["skipped"]
            verdict = f"{len(lines)} differences" if lines else "as listed"
            if options.backend != "vccl":
                verdict = "no list"
            figures = (len(done), ran, count["passed"], count["skipped"], count["failed"])
            print(row.format(device, world, *figures, verdict), flush=True)
            for line in lines:
                print(f"    {line}")
    return agreed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="vccl")
    parser.add_argument("--devices", nargs="+", choices=DEVICES)
    parser.add_argument("--worlds", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--tests", nargs="+", default=[])
    parser.add_argument("--logs", type=pathlib.Path, help="folder for results and for what the ranks print")
    parser.add_argument("--verbose", action="store_true", help="print each test's outcome")
    options = parser.parse_args()
    if options.devices is None:
        options.devices = DEVICES if options.backend == "vccl" else ["cpu"]
    logs = options.logs or pathlib.Path(tempfile.mkdtemp(prefix="conformance-"))
    logs.mkdir(parents=True, exist_ok=True)
    agreed = run(options, expected.read(), logs)
    print(f"tracebacks and what the ranks printed: {logs}")
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
