"""Plays jobs that hang or break, and checks what is said of them.

    python tests/hangs/play.py                     # all scripts in tests/hangs/jobs
    python tests/hangs/play.py sleeps_in_loader    # some, by parts of their names

A script has a docstring, ``EXPECT`` (expected.py) and ``job(rank)``. It may have ``RANKS`` (default: 3),
``HOSTS`` (the host that each rank counts as), ``TIMEOUT`` (of the default group, in seconds; 30 minutes
otherwise) and ``INIT = False``, if it makes the default group itself. Each rank is a fork of this process,
which has imported torch, so a job starts within moments.
"""

import argparse
import contextlib
import importlib.util
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from expected import Errors, Finding

from vccl import _C

JOBS = Path(__file__).parent / "jobs"
AT_ONCE = 6
# Generous, because the machine may be busy.
PATIENCE_S = 60.0
_LONG = timedelta(minutes=30)


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run_rank(script: ModuleType, rank: int, size: int, port: int, log: Path) -> None:
    """Is what the fork does. Never returns."""
    os.setpgid(0, 0)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
    hosts = getattr(script, "HOSTS", None)
    if hosts:
        os.environ["VCCL_HOSTID"] = f"host-{hosts[rank]}"
        os.environ["VCCL_SOCKET_IFNAME"] = "lo"
    status = 1
    try:
        torch.set_num_threads(1)
        if getattr(script, "INIT", True):
            timeout = getattr(script, "TIMEOUT", None)
            dist.init_process_group("vccl", timeout=timedelta(seconds=timeout) if timeout else _LONG)
            torch.accelerator.set_device_index(rank)
        script.job(rank)
        status = 0
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@dataclass
class Play:
    """One job under way."""

    name: str
    script: ModuleType
    folder: Path
    store: dist.TCPStore
    pids: list[int] = field(default_factory=list)
    ended: dict[int, int] = field(default_factory=dict)
    begin: float = field(default_factory=time.monotonic)
    last_seen: str = "nothing"
    says: str | None = None  # what is wrong with what was said; empty if nothing is
    took: float = 0.0

    @classmethod
    def start(cls, path: Path, folder: Path) -> "Play":
        return cls.start_script(_load(path), folder)

    @classmethod
    def start_script(cls, script: ModuleType, folder: Path) -> "Play":
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        play = cls(script.__name__, script, folder, store)
        size = getattr(script, "RANKS", 3)
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                _run_rank(script, rank, size, store.port, play.log_of(rank))
            play.pids.append(pid)
        return play

    def log_of(self, rank: int) -> Path:
        return self.folder / f"{self.name}.{rank}"

    def look(self, jobs: list[dict[str, Any]]) -> bool:
        """Returns whether the job has said what it has to say, or cannot any more."""
        for rank, pid in enumerate(self.pids):
            if rank not in self.ended:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    self.ended[rank] = os.waitstatus_to_exitcode(status)
        expected = self.script.EXPECT
        errors = isinstance(expected, Errors)
        done = self._has_errors(expected) if errors else self._has_finding(expected, jobs)
        late = time.monotonic() - self.begin > PATIENCE_S
        if done or late:
            self.took = time.monotonic() - self.begin
            self.says = "" if done else self._complaint(expected)
        return done or late

    def _has_errors(self, expected: Errors) -> bool:
        if not all(rank in self.ended for rank in expected.ranks):
            return False
        texts = {rank: self.log_of(rank).read_text() for rank in expected.ranks}
        return all(part in text for text in texts.values() for part in expected.text)

    def _has_finding(self, expected: Finding, jobs: list[dict[str, Any]]) -> bool:
        for job in jobs:
            if not {rank["pid"] for rank in job["ranks"]} & set(self.pids):
                continue
            for finding in job["diagnosis"]:
                self.last_seen = f"{finding['kind']} {finding['culprits']}: {finding['text']}"
                same = (finding["kind"], tuple(finding["culprits"])) == (expected.kind, expected.culprits)
                if same and all(part in finding["text"] for part in expected.text):
                    return len(job["diagnosis"]) == 1
        return False

    def _complaint(self, expected: Errors | Finding) -> str:
        if isinstance(expected, Finding):
            return f"expected {expected}; the last finding was: {self.last_seen}"
        logs = {rank: self.log_of(rank).read_text()[-1500:] for rank in range(len(self.pids))}
        return f"expected {expected}; ended: {self.ended}; logs: {logs}"

    def end(self) -> None:
        for rank, pid in enumerate(self.pids):
            if rank not in self.ended:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def play(paths: list[Path]) -> list[Play]:
    """Plays the scripts, several at a time, and returns them in the order in which they have ended."""
    left, running, done = list(paths), [], []
    with tempfile.TemporaryDirectory() as folder:
        try:
            while left or running:
                while left and len(running) < AT_ONCE:
                    running.append(Play.start(left.pop(0), Path(folder)))
                jobs = _C._diagnose(500)["jobs"]
                for job in [job for job in running if job.look(jobs)]:
                    job.end()
                    running.remove(job)
                    done.append(job)
                time.sleep(0.1)
        finally:
            for job in running:
                job.end()
    return done


def scripts(parts: list[str]) -> list[Path]:
    found = sorted(JOBS.rglob("*.py"))
    return [path for path in found if not parts or any(part in path.stem for part in parts)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Plays jobs that hang or break.")
    parser.add_argument("names", nargs="*", help="parts of the names of scripts; all if there is none")
    names = parser.parse_args().names
    done = play(scripts(names))
    for job in sorted(done, key=lambda job: job.name):
        print(f"{job.took:6.1f} s  {job.name:45s} {'ok' if not job.says else job.says}")
    wrong = [job.name for job in done if job.says]
    print(f"{len(done) - len(wrong)} of {len(done)} said what they had to")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
