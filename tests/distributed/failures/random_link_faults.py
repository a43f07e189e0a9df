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
import ctypes
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import random_cases
import random_deaths
import torch
import torch.distributed as dist
from namespaces import Network, why_impossible
from random_deaths import ended_children, footprint

LINK_TIMEOUT = 5.0  # seconds, the default of VCCL_LINK_TIMEOUT
# Seconds that a rank waits for one of its own host, which was stopped while it used the memory of both
# (transport/host/mapped_peers.cpp).
WITHDRAWAL = 5.0
BEHIND = 1.0  # seconds that a rank may hear of it later than one that waits for the lost rank itself
PATIENCE = 300.0  # seconds to come to the fault, or to end after it
GROUP_TIMEOUT = 1800.0
LAYOUTS = ("ab", "aab", "abb", "abc", "aabb", "abab", "abbc")
KINDS = ("cut", "pause", "kill", "stop", "down", "remove", "reset")
HARMLESS = ("cut", "pause", "reset")
FATAL = tuple(kind for kind in KINDS if kind not in HARMLESS)
SECURITIES = ("encrypt", "authenticate", "none")
MOST_STEPS_PER_WAIT = 3  # that all ranks have to make after a harmless fault
# A connection that TCP does not revive in time after a cut is made again (transport/connections/resumption.hpp).
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


class Rank:
    """One rank's run: on its way it tells what happens as lines of JSON on a pipe that all ranks share."""

    def __init__(self, case: Case, rank: int, folder: Path, pipe: int) -> None:
        self.case, self.rank, self.pipe, self.stop = case, rank, pipe, folder / "stop"
        self.store = dist.FileStore(str(folder / "store"), case.size)

    def tell(self, event: str, **more: Any) -> None:
        line = json.dumps({"rank": self.rank, "event": event, "time": time.monotonic(), **more})
        os.write(self.pipe, line.encode()[:4000] + b"\n")  # in one piece, being less than PIPE_BUF

    def run(self) -> int:
        """Returns the exit status."""
        torch.accelerator.set_device_index(self.rank)
        before = footprint()
        try:
            self.work_through()
            self.tell("ended")
        except Exception as error:
            where = traceback.format_exc(limit=-4)[-1200:]
            self.tell("raised", type=type(error).__name__, text=str(error)[:1500], where=where)
        dist.destroy_process_group()
        left = footprint() - before
        # The process's own threads keep theirs for the next group.
        threads = ("eventpoll", "eventfd", "timerfd")
        left = {what: count for what, count in left.items() if not any(kind in what for kind in threads)}
        self.tell("destroyed", left=left)
        return 0

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
# The server, which forks ranks and does what the case says


@dataclass
class Outcome:
    """What was seen of a case."""

    fault: float = 0.0  # when it happened, 0 if it did not
    lasted: float = 0.0  # seconds that a harmless one lasted
    resumed: float = 0.0  # when a stopped rank went on for the sake of its own error
    events: list[dict[str, Any]] = field(default_factory=list)
    status: dict[int, int] = field(default_factory=dict)
    silent: list[int] = field(default_factory=list)  # ranks that had to be killed
    strays: list[int] = field(default_factory=list)  # processes that ranks left behind
    printed: str = ""

    def event(self, rank: int, name: str) -> dict[str, Any] | None:
        return next((e for e in self.events if e["rank"] == rank and e["event"] == name), None)

    def steps(self, rank: int) -> int:
        return max(
            (e["number"] for e in self.events if e["rank"] == rank and e["event"] == "step"), default=0
        )


def serve(commands: int, answers: int) -> Rank | None:
    """Runs cases from the pipe; returns a Rank in a process that is to be one, None at the end."""
    ctypes.CDLL(None).prctl(random_deaths.PR_SET_CHILD_SUBREAPER, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    assert len(os.listdir("/proc/self/task")) == 1, "only a process of one thread can be forked"
    with open(commands) as lines:
        for line in lines:
            case = Case(**json.loads(line))
            folder = Path(tempfile.mkdtemp())
            with contextlib.closing(Network("".join(sorted(set(case.layout))))) as network:
                outcome = play(case, network, folder)
            if isinstance(outcome, Rank):
                os.close(answers)
                return outcome
            shutil.rmtree(folder)
            os.write(answers, json.dumps(asdict(outcome)).encode() + b"\n")
    return None


def play(case: Case, network: Network, folder: Path) -> Rank | Outcome:
    """Runs a case. Returns twice: what was seen of it, and a Rank in each process that is to be one."""
    reading, writing = os.pipe()
    pids = {}
    with open(folder / "log", "a+", errors="replace") as log:
        for rank in range(case.size):
            pid = os.fork()
            if pid == 0:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                network.enter(case.layout[rank])
                os.environ.update(VCCL_HOSTID=case.layout[rank], VCCL_LINK_SECURITY=case.security)
                return Rank(case, rank, folder, writing)
            pids[rank] = pid
        os.close(writing)
        attendant = Attendant(case, pids, network, reading, folder / "stop")
        attendant.attend()
        os.close(reading)
        log.seek(0)
        attendant.outcome.printed = log.read()[-20_000:]
    return attendant.outcome


class Attendant:
    """Makes the fault happen, and watches the ranks until they have ended."""

    def __init__(self, case: Case, pids: dict[int, int], network: Network, pipe: int, stop: Path) -> None:
        self.case, self.pids, self.network, self.pipe, self.stop = case, pids, network, pipe, stop
        self.outcome = Outcome()
        self.lines = b""

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
        self.until(lambda: False)
        outcome.silent = [rank for rank in self.pids if rank not in outcome.status]
        for rank in outcome.silent:
            os.kill(self.pids[rank], signal.SIGKILL)
        self.until(lambda: False)
        # Strays are ours by now. They hold no pipe that we read to its end: nobody waits for them.
        for name in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            outcome.strays.append(int(name))
            os.kill(int(name), signal.SIGKILL)
            os.waitpid(int(name), 0)

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

    def until(self, reached: Any, seconds: float = PATIENCE) -> bool:
        """Watches until that is so, all have ended, or the time is over. Returns whether it is so."""
        limit = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > limit or len(self.outcome.status) == self.case.size:
                return False
            if select.select([self.pipe], [], [], 0.01)[0]:
                self.lines += os.read(self.pipe, 1 << 16)
            while b"\n" in self.lines:
                line, _, self.lines = self.lines.partition(b"\n")
                self.outcome.events.append(json.loads(line))
            ranks = {pid: rank for rank, pid in self.pids.items()}
            for pid, status in ended_children():
                if pid in ranks:
                    self.outcome.status[ranks[pid]] = os.waitstatus_to_exitcode(status)
                else:
                    self.outcome.strays.append(pid)
        return True


# ---------------------------------------------------------------------------------------------------------
# The judge


@dataclass
class Verdict:
    faults: list[str]
    latency: float = 0.0  # seconds from the fault to the last error
    excused: bool = False


def judge(case: Case, outcome: Outcome, slack: float) -> Verdict:
    verdict = Verdict([])
    fault = verdict.faults.append
    if outcome.strays:
        fault(f"processes were left behind: {outcome.strays}")
    if not outcome.fault:
        fault("the ranks did not come to their work")
    for rank in range(case.size):
        raised, destroyed = outcome.event(rank, "raised"), outcome.event(rank, "destroyed")
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
        if rank in outcome.silent or not destroyed or outcome.status[rank] != 0:
            fault(f"rank {rank} did not end well: {outcome.status.get(rank)}, {destroyed}")
        elif destroyed["left"]:
            fault(f"rank {rank} left behind {destroyed['left']}")
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
    server = random_cases.Server(serve)

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
