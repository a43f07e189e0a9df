"""Faults of every kind at random places of random jobs, and what becomes of all ranks.

    python tests/distributed/failures/random_faults.py --count 1000 --seed 0
    python tests/distributed/failures/random_faults.py --cases 17,23 --show    # these again

A case is a number; everything random in it follows from that number. 2 to 4 ranks on one or two pretended
hosts make a group, run collectives and messages on cards and on the CPU, compare every result, and destroy
the group. One fault of a plan strikes one of them. What is required:

- Ranks that are held up cost time, and all results are right.
- A rank that ends is named by the error of every other rank that has not finished yet.
- Wrong numbers come from faults that damage numbers alone, and only on ranks that the damage can reach.
- All ranks end within a minute, while the groups' timeout is half an hour.

A case whose rank does not come to the place of its fault is excused.
"""

import datetime
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field

import random_cases
import torch
import torch.distributed as dist
from random_cases import Verdict

import vccl.faults
from vccl.faults.environment import LOG

BOUND = 60.0  # seconds for a whole case
TIMEOUT = datetime.timedelta(minutes=30)
HELD_UP = {"stall": (0.01, 0.1), "stop": (0.01, 0.1), "slow": (3, 20)}
ENDED = {"kill": -signal.SIGKILL, "segv": -signal.SIGSEGV, "abort": -signal.SIGABRT, "exit": 3}
RAISED = ("raise", "oom")
DAMAGING = ("corrupt", "nan")
OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send", "recv")


@dataclass
class Case:
    number: int
    hosts: list[str]
    victim: int
    kind: str
    plan: str
    steps: int

    @property
    def size(self) -> int:
        return len(self.hosts)


@dataclass
class Outcome:
    """How each rank has ended, and what it has told."""

    statuses: dict[int, int | None] = field(default_factory=dict)  # None: it was still there
    told: dict[int, list[str]] = field(default_factory=dict)
    printed: str = ""
    has_struck: bool = False

    @property
    def events(self) -> list[str]:
        return [f"rank {rank}: {status}, {self.told[rank]}" for rank, status in self.statuses.items()]


def make_case(number: int) -> Case:
    draws = random.Random(number)
    size = draws.choice((2, 3, 4))
    hosts = ["a"] * size
    if draws.random() < 0.2:
        hosts = ["a", "b"] + [draws.choice("ab") for _ in range(size - 2)]
    kind = draws.choice((*HELD_UP, *ENDED, *RAISED, *DAMAGING))
    victim = draws.randrange(size)
    amount = {**dict.fromkeys(ENDED, ""), "exit": ":3", "raise": ":RuntimeError", "corrupt": ":3"}.get(
        kind, ""
    )
    if kind in HELD_UP:
        amount = f":{draws.choice(HELD_UP[kind])}"
    moments = {"raise": ("before",), "slow": ("",)}.get(kind, ("before", "during", "after"))
    if kind in DAMAGING:
        moments = ("before", "after")
    place = f"op={draws.choice(OPERATIONS)}," if kind in DAMAGING or draws.random() < 0.7 else ""
    if kind in (*ENDED, "stall") and draws.random() < 0.2:
        phase = draws.choice(("init", "first_use", "destroy"))
        # Nobody knows of a rank that ends before it has come to the first meeting.
        place, moments = f"phase={phase},", ("after",) if phase == "init" else ("before", "after")
    n = 1 if place.startswith("phase") else draws.randint(1, 3)
    if kind in DAMAGING and place in ("op=send,", "op=recv,"):
        moments = ("before",) if place == "op=send," else ("after",)
    moment = draws.choice(moments)
    plan = f"rank={victim},{place}n={n},{moment and f'at={moment},'}do={kind}{amount}"
    return Case(number, hosts, victim, kind, plan, draws.randint(6, 15))


class WrongNumbers(Exception):
    """A result is another one than that of the same operation without faults."""


class Job:
    """The operations of a rank, each of which knows its right result."""

    def __init__(self, case: Case, rank: int) -> None:
        self.draws = random.Random(f"{case.number} steps")  # the same on all ranks
        self.rank, self.size = rank, case.size

    def values(self, rank: int, step: int, count: int) -> torch.Tensor:
        return (torch.arange(count, dtype=torch.float32) % 97) + 100 * rank + step

    def check(self, what: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
        if not torch.equal(found.cpu(), wanted):
            raise WrongNumbers(what)

    def step(self, number: int) -> None:
        operation = self.draws.choice(OPERATIONS[:-1])
        device = self.draws.choice(("vdev", "cpu"))
        count = self.draws.choice((1, 5, 300, 5_000, 100_000))
        root = self.draws.randrange(self.size)
        mine = [self.values(rank, number, count) for rank in range(self.size)]
        getattr(self, operation)(number, device, count, root, mine)

    def all_reduce(self, number: int, device: str, count: int, root: int, mine: list[torch.Tensor]) -> None:
        x = mine[self.rank].to(device, copy=True)
        dist.all_reduce(x)
        self.check("all_reduce", x, sum(mine[1:], mine[0]))

    def broadcast(self, number: int, device: str, count: int, root: int, mine: list[torch.Tensor]) -> None:
        x = mine[self.rank].to(device, copy=True)
        dist.broadcast(x, root)
        self.check("broadcast", x, mine[root])

    def all_gather(self, number: int, device: str, count: int, root: int, mine: list[torch.Tensor]) -> None:
        out = [torch.zeros(count, device=device) for _ in range(self.size)]
        dist.all_gather(out, mine[self.rank].to(device))
        self.check("all_gather", torch.cat(out), torch.cat(mine))

    def reduce_scatter(
        self, number: int, device: str, count: int, root: int, mine: list[torch.Tensor]
    ) -> None:
        inputs = [[x + part for part in range(self.size)] for x in mine]
        out = torch.zeros(count, device=device)
        dist.reduce_scatter(out, [x.to(device) for x in inputs[self.rank]])
        self.check("reduce_scatter", out, sum(x[self.rank] for x in inputs))

    def all_to_all(self, number: int, device: str, count: int, root: int, mine: list[torch.Tensor]) -> None:
        x = (mine[self.rank].repeat(self.size)).to(device)
        out = torch.zeros_like(x)
        dist.all_to_all_single(out, x)
        self.check("all_to_all", out, torch.cat(mine))

    def send(self, number: int, device: str, count: int, root: int, mine: list[torch.Tensor]) -> None:
        other = (root + 1) % self.size
        x = mine[self.rank].to(device, copy=True)
        if self.rank == root:
            dist.send(x, other)
        elif self.rank == other:
            dist.recv(x, root)
            self.check("recv", x, mine[root])


def be_rank(case: Case, rank: int, folder: str, pipe: int) -> None:
    """Runs one rank, and tells "finished", "wrong TEXT" or "error TEXT"."""

    def tell(word: str, text: str = "") -> None:
        os.write(pipe, json.dumps([rank, word, text[:3000]]).encode() + b"\n")

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["VCCL_HOSTID"] = case.hosts[rank]
    os.environ["RANK"] = str(rank)
    os.environ[LOG] = f"{folder}/struck"  # gets a line before a fault strikes
    try:
        with vccl.faults.plan(case.plan):
            store = dist.FileStore(f"{folder}/store", case.size)
            dist.init_process_group("vccl", store=store, rank=rank, world_size=case.size, timeout=TIMEOUT)
            torch.accelerator.set_device_index(rank)
            job = Job(case, rank)
            for number in range(case.steps):
                job.step(number)
            torch.accelerator.synchronize()
            dist.destroy_process_group()
        tell("finished")
    except WrongNumbers as error:
        tell("wrong", str(error))
    except Exception as error:
        tell("error", f"{type(error).__name__}: {error}")
    os._exit(0)  # nothing of the driver that this process was forked from is to run


def play(case: Case, slack: float) -> Outcome:
    outcome = Outcome(told={rank: [] for rank in range(case.size)})
    with tempfile.TemporaryDirectory() as folder:
        reading, writing = os.pipe()
        pids = []
        for rank in range(case.size):
            sys.stdout.flush()
            if (pid := os.fork()) == 0:
                os.dup2(os.open(f"{folder}/printed", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
                be_rank(case, rank, folder, writing)
            pids.append(pid)
        os.close(writing)
        end = time.monotonic() + BOUND * slack
        left = dict(enumerate(pids))
        while left and time.monotonic() < end:
            for rank, pid in list(left.items()):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    outcome.statuses[rank] = os.waitstatus_to_exitcode(status)
                    del left[rank]
            time.sleep(0.002)
        for rank, pid in left.items():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            outcome.statuses[rank] = None
        with open(reading) as lines:
            for line in lines:
                rank, word, text = json.loads(line)
                outcome.told[rank].append(f"{word} {text}".strip())
        with open(f"{folder}/printed") as printed:
            outcome.printed = printed.read()
        outcome.has_struck = os.path.exists(f"{folder}/struck")
    return outcome


def judge(case: Case, outcome: Outcome) -> Verdict:
    faults: list[str] = [f"rank {rank} hung" for rank, status in outcome.statuses.items() if status is None]
    victims_end = outcome.statuses[case.victim]
    ended = case.kind in ENDED and victims_end == ENDED[case.kind]
    raised = case.kind in RAISED and any(text.startswith("error") for text in outcome.told[case.victim])
    for rank, told in outcome.told.items():
        if outcome.statuses[rank] is None or (rank == case.victim and (ended or raised)):
            continue
        text = told[0] if told else f"nothing, and ended with {outcome.statuses[rank]}"
        if text == "finished":
            continue
        if text.startswith("wrong") and case.kind in DAMAGING:
            continue
        # Whoever has seen a wrong number leaves, and so does who has seen that.
        names_one = any(f"rank {other}" in text for other in range(case.size) if other != rank)
        if text.startswith("error") and (ended or raised or case.kind in DAMAGING):
            if not names_one:
                faults.append(f"rank {rank} names nobody: {text}")
            elif (ended or raised) and f"rank {case.victim}" not in text and " left " not in text:
                faults.append(f"rank {rank} does not name rank {case.victim}: {text}")
            continue
        faults.append(f"rank {rank} told {text}")
    return Verdict(faults, excused=not outcome.has_struck)


def run(case: Case, slack: float) -> tuple[Outcome, Verdict]:
    outcome = play(case, slack)
    return outcome, judge(case, outcome)


def main() -> int:
    return random_cases.run_all(random_cases.arguments(__doc__, count=100), make_case, run, lambda case: None)


if __name__ == "__main__":
    sys.exit(main())
