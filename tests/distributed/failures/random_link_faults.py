"""Links between hosts that fail at random points, and what becomes of the ranks.

    python tests/distributed/failures/random_link_faults.py --count 200 --seed 0
    python tests/distributed/failures/random_link_faults.py --cases 17,23 --show  # these again, with all seen

A case is a number; everything random in it comes from it. 2 to 4 ranks on two or three hosts, which
are network namespaces (this needs root), do random collectives and messages and check every number. Meanwhile
one of these happens:

- "cut": the link of a host is down for up to 3 s; "pause": a rank is stopped for as long. "reset": the
  connections of a host are reset. Every result has to be right, and no rank may raise.
- "kill": a rank is killed. "stop": a rank is stopped until the others have ended. "down": the link of a host
  goes down for good. "remove": it is removed. Every other rank has to raise DistBackendError within
  VCCL_LINK_TIMEOUT and one second, with the number of a lost rank and, unless it shares the host, the host's
  name. The stopped rank has to raise, too, once it goes on. A rank on its own host may need 5 s more, where
  the stopped one might still write to its memory.

Then every rank destroys its group and ends, and leaves nothing behind: no descriptor, no mapping, no process.
On a machine that is busy with other things, --slack multiplies the seconds.
"""

import contextlib
import functools
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import random_cases
import random_ranks
import torch
import torch.distributed as dist
from namespaces import Network, why_impossible
from random_cases import Verdict

LINK_TIMEOUT = 5.0  # seconds, the default of VCCL_LINK_TIMEOUT
# Seconds that a rank waits for one of its own host, which was stopped while it used the memory of both
# (transport/host/mapped_peers.cpp).
WITHDRAWAL = 5.0
BEHIND = 1.0  # seconds that a rank may hear of it later than one that waits for the lost rank itself
GROUP_TIMEOUT = 1800.0
LAYOUTS = ("ab", "aab", "abb", "abc", "aabb", "abab", "abbc")
KINDS = ("cut", "pause", "kill", "stop", "down", "remove", "reset")
HARMLESS = ("cut", "pause", "reset")
FATAL = tuple(kind for kind in KINDS if kind not in HARMLESS)
SECURITIES = ("encrypt", "authenticate", "none")
MOST_STEPS_PER_WAIT = 3  # that all ranks have to make after a harmless fault
# A connection that TCP does not revive in time after a cut is made again
# (transport/connections/resumption.hpp).
LONGEST_CUT = 3.0


@dataclass
class Case:
    """A rank of `layout` is on the host with its letter. `seconds` is how long a harmless fault lasts, and
    `delay` how long the ranks have worked before it."""

    number: int
    layout: str
    security: str
    kind: str
    victim: int  # a rank; for a link, that of its host
    end: str  # of the link that is cut
    delay: float
    seconds: float

    @property
    def size(self) -> int:
        return len(self.layout)

    @property
    def host(self) -> str:
        return self.layout[self.victim]

    def lost_to(self, rank: int) -> list[int]:
        """The ranks that `rank` loses. A rank that was stopped may first hear that others have lost it."""
        everybody = set(range(self.size))
        if self.kind in ("kill", "stop"):
            return [self.victim] if rank != self.victim else sorted(everybody)
        same_side = {other for other in everybody if self.layout[other] == self.host}
        return sorted(everybody - same_side if rank in same_side else same_side)


def make_case(number: int) -> Case:
    random_ = random.Random(number)
    layout = random_.choice(LAYOUTS)
    kind = random_.choice(KINDS)
    return Case(
        number,
        layout,
        random_.choice(SECURITIES),
        kind,
        random_.randrange(len(layout)),
        random_.choice(("hub", "host")),
        random_.uniform(0, 0.3),
        random_.uniform(0.2, 0.9 * LONGEST_CUT),
    )


# ---------------------------------------------------------------------------------------------------------
# A rank


class Rank(random_ranks.Rank):
    def __init__(self, case: Case, rank: int, folder: Path, pipe: int) -> None:
        super().__init__(case, rank, pipe)
        self.stop = folder / "stop"
        self.store = dist.FileStore(str(folder / "store"), case.size)

    def work_through(self) -> None:
        size = self.case.size
        timeout = timedelta(seconds=GROUP_TIMEOUT)
        dist.init_process_group("vccl", store=self.store, rank=self.rank, world_size=size, timeout=timeout)
        same = random.Random(self.case.number)  # all ranks do the same
        for device in ("cpu", "vdev"):
            for distance in range(1, size):  # the connections of messages are made with the first ones
                self.messages(distance, 10, device)
            for what in (self.all_reduce, self.all_gather):
                what(100, device)
        step, stops = 0, False
        while not stops:
            self.tell("step", number=step)
            device = same.choice(("cpu", "vdev"))
            count = same.choice((1, 100, 10_000, 300_000, 1_500_000))
            what = same.choice(
                ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "messages")
            )
            if what == "messages":
                self.messages(same.randrange(1, size), count, device)
            else:
                getattr(self, what)(count, device)
            step += 1
            flag = torch.tensor([float(self.rank == 0 and self.stop.exists())])
            dist.broadcast(flag, 0)
            stops = bool(flag.item())

    def pattern(self, rank: int, count: int, device: str = "cpu") -> torch.Tensor:
        """Whole numbers, whose sums are exact."""
        return (torch.arange(count, dtype=torch.float32) % 1013 + 1000 * rank).to(device)

    def check(self, found: torch.Tensor, expected: torch.Tensor) -> None:
        assert torch.equal(found.cpu(), expected), "a wrong number, and no error"

    def sums(self, count: int) -> torch.Tensor:
        return sum((self.pattern(rank, count) for rank in range(self.case.size)), torch.zeros(count))

    def every(self, count: int) -> torch.Tensor:
        return torch.cat([self.pattern(rank, count) for rank in range(self.case.size)])

    def all_reduce(self, count: int, device: str) -> None:
        x = self.pattern(self.rank, count, device)
        dist.all_reduce(x)
        self.check(x, self.sums(count))

    def all_gather(self, count: int, device: str) -> None:
        out = torch.empty(count * self.case.size, device=device)
        dist.all_gather_into_tensor(out, self.pattern(self.rank, count, device))
        self.check(out, self.every(count))

    def reduce_scatter(self, count: int, device: str) -> None:
        out, x = torch.empty(count, device=device), self.pattern(self.rank, count * self.case.size, device)
        dist.reduce_scatter_tensor(out, x)
        self.check(out, self.sums(count * self.case.size)[self.rank * count :][:count])

    def broadcast(self, count: int, device: str) -> None:
        root = count % self.case.size
        x = self.pattern(self.rank, count, device)
        dist.broadcast(x, root)
        self.check(x, self.pattern(root, count))

    def all_to_all(self, count: int, device: str) -> None:
        out = torch.empty(count * self.case.size, device=device)
        dist.all_to_all_single(out, self.pattern(self.rank, count, device).repeat(self.case.size))
        self.check(out, self.every(count))

    def messages(self, distance: int, count: int, device: str) -> None:
        source = (self.rank - distance) % self.case.size
        got = torch.empty(count, device=device)
        works = [
            dist.irecv(got, source),
            dist.isend(self.pattern(self.rank, count, device), (self.rank + distance) % self.case.size),
        ]
        for work in works:
            work.wait()
        self.check(got, self.pattern(source, count))


# ---------------------------------------------------------------------------------------------------------
# The server, which does what the case says


@dataclass
class Outcome(random_ranks.Outcome):
    fault: float = 0.0  # when it happened, 0 if it did not
    lasted: float = 0.0  # seconds that a harmless one lasted
    resumed: float = 0.0  # when a stopped rank went on for the sake of its own error

    def steps(self, rank: int) -> int:
        return max(
            (e["number"] for e in self.events if e["rank"] == rank and e["event"] == "step"), default=0
        )


def play(order: dict[str, Any]) -> Rank | Outcome:
    case = Case(**order)
    folder = Path(tempfile.mkdtemp())
    with contextlib.closing(Network("".join(sorted(set(case.layout))))) as network:

        def become(rank: int, pipe: int) -> Rank:
            network.enter(case.layout[rank])
            os.environ.update(VCCL_HOSTID=case.layout[rank], VCCL_LINK_SECURITY=case.security)
            return Rank(case, rank, folder, pipe)

        attendant = functools.partial(Attendant, case, network, folder / "stop")
        outcome = random_ranks.play(case.size, become, attendant)
    if isinstance(outcome, Outcome):
        shutil.rmtree(folder)
    return outcome


class Attendant(random_ranks.Attendant):
    """Makes the fault happen."""

    def __init__(self, case: Case, network: Network, stop: Path, pids: dict[int, int], pipe: int) -> None:
        super().__init__(case, pids, pipe, Outcome())
        self.network, self.stop = network, stop

    def attend(self) -> None:
        case, outcome = self.case, self.outcome
        others = [rank for rank in self.pids if rank != case.victim]
        at_work = self.until(lambda: all(outcome.steps(rank) >= 1 for rank in self.pids))
        if at_work:
            self.until(lambda: False, case.delay)
            self.strike()
            if case.kind in HARMLESS:
                self.until(lambda: False, case.seconds)
                self.mend()
                goal = {rank: outcome.steps(rank) + MOST_STEPS_PER_WAIT for rank in self.pids}
                self.until(lambda: all(outcome.steps(rank) >= goal[rank] for rank in self.pids))
                self.stop.touch()
        if case.kind == "stop":
            self.until(lambda: all(rank in outcome.status for rank in others))
            outcome.resumed = time.monotonic()
            os.kill(self.pids[case.victim], signal.SIGCONT)
        self.until(self.all_have_ended)

    def strike(self) -> None:
        case, victim = self.case, self.pids[self.case.victim]
        begin = time.monotonic()
        match case.kind:
            case "kill":
                os.kill(victim, signal.SIGKILL)
            case "stop" | "pause":
                os.kill(victim, signal.SIGSTOP)
            case "cut" | "down":
                self.network.set_link(case.host, up=False, end=case.end)
            case "remove":
                self.network.remove_link(case.host)
            case "reset":
                self.network.reset_connections(case.host)
        self.outcome.fault = begin

    def mend(self) -> None:
        if self.case.kind == "pause":
            os.kill(self.pids[self.case.victim], signal.SIGCONT)
        elif self.case.kind == "cut":
            self.network.set_link(self.case.host, up=True, end=self.case.end)
        self.outcome.lasted = time.monotonic() - self.outcome.fault


# ---------------------------------------------------------------------------------------------------------
# The judge


def judge(case: Case, outcome: Outcome, slack: float) -> Verdict:
    verdict = Verdict([*outcome.faults_of_server()])
    fault = verdict.faults.append
    if not outcome.fault:
        fault("the ranks did not come to their work")
    for rank in range(case.size):
        raised = outcome.event(rank, "raised")
        if case.kind == "kill" and rank == case.victim:
            continue
        if case.kind in HARMLESS and outcome.lasted <= LONGEST_CUT:
            if raised or not outcome.event(rank, "ended"):
                fault(f"rank {rank} did not end as if nothing had happened: {raised}")
        elif case.kind in HARMLESS:
            verdict.excused = True  # the machine was so busy that the fault lasted longer than it may
        elif not raised:
            fault(f"rank {rank} did not raise; it made {outcome.steps(rank)} steps")
        else:
            begin = outcome.resumed if rank == case.victim and case.kind == "stop" else outcome.fault
            seconds = raised["time"] - begin
            verdict.latency = max(verdict.latency, seconds)
            for text in faults_of_error(case, rank, raised, seconds, slack):
                fault(f"rank {rank} {text}: {raised['type']}: {raised['text']}")
        verdict.faults += outcome.faults_of_end(rank)
    return verdict


def faults_of_error(case: Case, rank: int, raised: dict[str, Any], seconds: float, slack: float) -> list[str]:
    found = []
    text = raised["text"]
    lost = case.lost_to(rank)
    if raised["type"] != "DistBackendError":
        found.append("raised another type")
    if not any(re.search(rf"\brank {other}\b", text, re.IGNORECASE) for other in lost):
        found.append(f"did not name any of the ranks {lost}")
    hosts = {case.layout[other] for other in lost}
    # The text of a rank that shares the host with the lost one has the number of a process instead.
    named = re.search(r"\(pid \d+\) died", text) or any(f", host {host})" in text for host in hosts)
    if case.layout[rank] not in hosts and not named:
        found.append(f"did not name any of the hosts {sorted(hosts)}")
    shares_host = case.kind == "stop" and rank != case.victim and case.layout[rank] == case.host
    if seconds > (LINK_TIMEOUT + BEHIND + (WITHDRAWAL if shares_host else 0)) * slack:
        found.append(f"raised {seconds:.1f} s after the fault")
    return found


def main() -> int:
    args = random_cases.arguments(__doc__, count=200)
    if why := why_impossible():
        sys.exit(why)
    server = random_cases.Server(functools.partial(random_ranks.serve, play))

    def run(case: Case, slack: float) -> tuple[Outcome, Verdict]:
        outcome = Outcome(**server.ask(asdict(case)))
        return outcome, judge(case, outcome, slack)

    status = random_cases.run_all(
        args, make_case, run, lambda case: case.kind if case.kind in FATAL else None
    )
    server.close()
    return status


if __name__ == "__main__":
    sys.exit(main())
