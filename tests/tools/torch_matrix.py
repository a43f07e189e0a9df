"""Runs the suites with several versions of torch, and prints a table of what came of them: `make matrix`.

Each version gets an environment and a build of its own, in build/matrix, which are made by the Makefile,
used, and removed before the next version's turn, because an environment with a CUDA build of torch takes
6 GB. Cards cannot pose as CUDA where torch was built with CUDA, so that suite needs a build for the CPU:
"2.13.0+cpu".

    python tests/tools/torch_matrix.py [--python PYTHON] [--suites device,pose] [--workers 2] VERSION...
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "matrix"
SUITES = {
    "device": ["tests/device"],
    "distributed": ["tests/distributed"],
    "testing": ["tests/testing"],
    "patches": ["tests/project/test_patch_registry.py", "tests/project/test_torch_backend.py"],
    "pose": [],  # which tests/pose/run.py chooses
}


@dataclass
class Result:
    """What came of one suite with one torch."""

    torch: str
    python: str
    suite: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0
    note: str = ""
    failures: list[str] = field(default_factory=list)


def read(report: Path, result: Result) -> None:
    """Adds the counts of a report in JUnit's form, as pytest writes it, and the names of what failed."""
    for case in ET.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            result.failed += 1
            result.failures.append(f"{case.get('classname')}::{case.get('name')}")
        elif case.find("skipped") is not None:
            result.skipped += 1
        else:
            result.passed += 1


def table(results: Sequence[Result]) -> str:
    """Returns the counts as Markdown, and what failed below them."""
    rows = [
        "| torch | Python | suite | passed | failed | skipped | minutes | |",
        "|---|---|---|---:|---:|---:|---:|---|",
    ]
    for r in results:
        counts = f"{r.passed} | {r.failed} | {r.skipped} | {r.seconds / 60:.1f}"
        rows.append(f"| {r.torch} | {r.python} | {r.suite} | {counts} | {r.note} |")
    failed = [f"- torch {r.torch}, {r.suite}: {name}" for r in results for name in r.failures]
    return "\n".join(rows + (["", *failed] if failed else []))


class Environment:
    """An environment with one torch, and a build of vccl for it."""

    def __init__(self, version: str, python: str) -> None:
        self.folder = FOLDER / f"torch-{version}-{Path(python).name}"
        self.version = version
        # `===` where no build is named: `==` would also take one for the CPU that lies on this machine.
        equals = "==" if "+" in version else "==="
        self.variables = [
            f"VENV={(self.folder / 'venv').relative_to(ROOT)}",
            f"BUILD={(self.folder / 'build').relative_to(ROOT)}",
            f"TORCH_REQUIREMENT=torch{equals}{version}",
            f"PYTHON={python}",
        ]

    def beside(self, ending: str) -> Path:
        """Returns the path of a file that outlives the folder."""
        # Path.with_suffix() would take the ".12" of python3.12 for an ending, and replace it.
        return self.folder.with_name(f"{self.folder.name}.{ending}")

    def make(self) -> str:
        """Installs torch, builds vccl, and returns an empty text, or the last line of an error."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.beside("build.log")
        with log.open("w") as file:
            made = subprocess.run(
                ["make", *self.variables, "build"], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT
            )
        return "" if made.returncode == 0 else f"not built: see {log.relative_to(ROOT)}"

    def python(self, code: str) -> str:
        command = [self.folder / "venv" / "bin" / "python", "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def run(self, suite: str, workers: int, long: bool, result: Result) -> None:
        """Runs a suite and puts the counts into `result`."""
        report = self.beside(f"{suite}.xml")
        report.unlink(missing_ok=True)
        options = [f"--numprocesses={workers}", f"--junitxml={report}"]
        if suite == "pose":
            command = ["tests/pose/run.py", *options, *([] if long else ["--short"])]
        else:
            short = [] if long else ["-m", "not daily"]
            command = ["-m", "pytest", *options, "--dist=loadfile", "--no-loadscope-reorder", *short]
            command += SUITES[suite]
        begin = time.monotonic()
        with self.beside(f"{suite}.log").open("w") as file:
            ended = subprocess.run(
                [self.folder / "venv" / "bin" / "python", *command],
                cwd=ROOT,
                # Whatever runs `vrun` or `python` has to find those of the environment.
                env={**os.environ, "PATH": f"{self.folder / 'venv' / 'bin'}:{os.environ['PATH']}"},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        result.seconds = time.monotonic() - begin
        if report.exists():
            read(report, result)
        if ended.returncode not in (0, 1):
            result.note = f"pytest ended with {ended.returncode}"

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def run_version(version: str, options: argparse.Namespace) -> Iterator[Result]:
    """Makes the environment of one torch, and yields a result for each suite."""
    environment = Environment(version, options.python)
    python = Path(options.python).name
    try:
        if problem := environment.make():
            yield Result(version, python, "all", failed=1, note=problem)
            return
        named = environment.python(
            "import torch, platform; print(torch.__version__, platform.python_version(), torch.version.cuda)"
        )
        found, python, cuda = named.split()
        for suite in options.suites:
            result = Result(found, python, suite)
            if suite == "pose" and cuda != "None":
                result.note = "not run: this torch was built with CUDA"
            else:
                environment.run(suite, options.workers, options.long, result)
            yield result
    finally:
        if not options.keep:
            environment.remove()


def main(arguments: Sequence[str]) -> int:
    """Returns 0 if every suite that ran has passed with every torch."""
    parser = argparse.ArgumentParser(description="Runs the suites with several versions of torch.")
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the environments")
    parser.add_argument("--suites", default=",".join(SUITES), type=lambda names: names.split(","))
    parser.add_argument("--workers", default=2, type=int)
    parser.add_argument("--long", action="store_true", help="also run what has the mark daily")
    parser.add_argument("--keep", action="store_true", help="leave the environments and the builds")
    options = parser.parse_args(arguments)
    if unknown := set(options.suites) - set(SUITES):
        parser.error(f"there is no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    results = []
    for version in options.versions:
        for result in run_version(version, options):
            results.append(result)
            print(table([result]).splitlines()[2], flush=True)
    print(f"\n{table(results)}")
    return int(any(result.failed or result.note.startswith("pytest") for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
