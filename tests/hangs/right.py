"""Plays random jobs that are right, and checks that nobody is blamed.

    python tests/hangs/right.py --count 1000 --seed 7

Each job's ranks call the same random collectives on the CPU and on cards in several groups, send each other
messages in both orders, and sleep in between, at most a third of the time after which a wait counts as
lasting. A job fails if it raises, and also if a diagnosis that is taken meanwhile blames a rank.

Two of three jobs count as on two or three hosts. Their ranks sleep longer, so that hosts ask each other what
they wait for, and these jobs fail only if they raise.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import play
import torch
import torch.distributed as dist
from expected import Errors

from vccl import _C

SIZE = 3
LONGEST_PAUSE_S = 0.6
LONGEST_PAUSE_BETWEEN_HOSTS_S = 2.0
AT_ONCE = 4


def _step(rank: int, group: dist.ProcessGroup, choice: int, device: str) -> None:
    x = torch.full((choice % 5 * 1000 + 1,), float(rank), device=device)
    if choice % 4 == 0:
        dist.all_reduce(x, group=group)
    elif choice % 4 == 1:
        dist.broadcast(x, choice % SIZE, group=group)
    elif choice % 4 == 2:
        dist.all_reduce(x, group=group, async_op=True).wait()
    else:
        to, source = (rank + 1) % SIZE, (rank - 1) % SIZE
        y = torch.empty_like(x)
        works = [dist.irecv(y, source, group=group), dist.isend(x, to, group=group)]
        for work in reversed(works) if choice % 2 else works:
            work.wait()
    if choice % 3 == 0:
        torch.accelerator.synchronize()


def _job_of(seed: int) -> ModuleType:
    hosts = [None, [0, 0, 1], [0, 1, 2]][seed % 3]
    longest = LONGEST_PAUSE_BETWEEN_HOSTS_S if hosts else LONGEST_PAUSE_S

    def job(rank: int) -> None:
        common, own = random.Random(seed), random.Random(seed * 100 + rank)
        groups = [dist.group.WORLD, dist.new_group(list(range(SIZE)))]
        for _ in range(common.randrange(4, 16)):
            if own.random() < 0.2:
                time.sleep(own.random() * longest)
            device = common.choice(["cpu", f"vdev:{rank}"])
            _step(rank, common.choice(groups), common.randrange(1000), device)
        torch.accelerator.synchronize()

    script = ModuleType(f"right_{seed}")
    script.job = job  # type: ignore[attr-defined]
    script.EXPECT = Errors(tuple(range(SIZE)))  # type: ignore[attr-defined]
    script.HOSTS = hosts  # type: ignore[attr-defined]
    return script


def blamed(job: play.Play, jobs: list[dict]) -> str:
    """Returns the diagnosis that blames a rank of the job, or an empty text."""
    for found in jobs:
        if {rank["pid"] for rank in found["ranks"]} & set(job.pids):
            for finding in found["diagnosis"]:
                return finding["text"]
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Plays random jobs that are right.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    left = [options.seed * 1_000_000 + i for i in range(options.count)]
    running: list[play.Play] = []
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        while left or running:
            while left and len(running) < AT_ONCE:
                running.append(play.Play.start_script(_job_of(left.pop()), Path(folder)))
            jobs = _C._diagnose(500)["jobs"]
            for job in list(running):
                said = "" if job.script.HOSTS else blamed(job, jobs)
                ended = job.look([])
                failed = {rank: job.log_of(rank).read_text() for rank, status in job.ended.items() if status}
                if said or failed or (ended and job.says):
                    wrong += 1
                    print(f"{job.name}: {said or failed or job.says}", flush=True)
                if said or ended:
                    job.end()
                    running.remove(job)
            time.sleep(0.05)
    print(f"{options.count - wrong} of {options.count} right jobs went through without blame")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
