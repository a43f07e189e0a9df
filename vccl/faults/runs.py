"""Runs a script under vrun, and ends it in bounded time."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import report
from .plans import Struck
from .rules import Rules

# After Ctrl-C, vrun ends its ranks within a second or so.
_PATIENCE = 30.0


@dataclasses.dataclass(frozen=True)
class Program:
    """What is run: the options of vrun, the script, its arguments, and the file that has its result."""

    options: Sequence[str]
    script: str
    arguments: Sequence[str]
    result: Path | None = None


@dataclasses.dataclass
class Run:
    """How a run has ended."""

    status: int | None
    """The exit status of vrun, or None if it had to be ended."""
    seconds: float
    output: str
    errors: str
    result: object
    """What must be the same in every run: the lines of the output in any order, or the bytes of the file."""
    struck: list[Struck]
    """What has struck, and what was due and could do nothing."""
    diagnosis: list[str]
    """For a run that had to be ended, who hung and why."""


def run(program: Program, plan: Rules | None, seconds: float) -> Run:
    """Runs the program once.

    Args:
        program: what is run.
        plan: the faults, or None.
        seconds: after which the run counts as one that hangs. Then it is found out who is to blame, and the
            run is ended.
    """
    if program.result is not None:
        program.result.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="vccl_soak_", ignore_cleanup_errors=True) as folder:
        log = Path(folder, "struck")
        environment = {name: value for name, value in os.environ.items() if name != "VCCL_FAULTS"}
        environment["VCCL_FAULTS_LOG"] = str(log)
        options = [*program.options, "--no-prefix"]
        if plan is not None:
            options += ["--faults", plan.words()]
        command = [sys.executable, "-m", "vccl.launch.vrun", *options, program.script, *program.arguments]
        begin = time.monotonic()
        with open(Path(folder, "out"), "w+b") as out, open(Path(folder, "err"), "w+b") as err:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                start_new_session=True,
            )
            diagnosis: list[str] = []
            status: int | None = None
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                diagnosis = _diagnosis(process.pid)
            finally:
                _end(process)
            took = time.monotonic() - begin
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        return Run(
            status, took, texts[0], texts[1], _result(program, texts[0]), report.read_log(log), diagnosis
        )


def _result(program: Program, output: str) -> object:
    if program.result is None:
        return Counter(output.splitlines())
    return program.result.read_bytes() if program.result.exists() else None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends vrun, and what it has started if it does not do that itself."""
    if process.poll() is not None:
        return
    started = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        started = descendants(process.pid)
        process.kill()
        process.wait()
    for pid, birth in started.items():
        if _birth(pid) == birth:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> dict[int, str]:
    """Returns the children of a process, their children, and so on, each with when it was started."""
    found: dict[int, str] = {}
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()):
                found |= {child: _birth(child), **descendants(child)}
    return found


def _birth(pid: int) -> str:
    """Returns when a process was started, in ticks of the system. Its number may be another's later."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _diagnosis(pid: int) -> list[str]:
    """Returns what vccl.top finds of the jobs of a process."""
    from vccl.top import jobs

    try:
        own = descendants(pid)
        found: dict[str, Any] = jobs.look()
        return [
            str(finding["text"])
            for job in found["jobs"]
            if any(rank["pid"] in own for rank in job["ranks"])
            for finding in job["diagnosis"]
        ]
    except Exception as error:
        return [f"vccl.top could not look: {error}"]
