"""Ranks that die at random points, and what becomes of the others.

    python tests/distributed/failures/random_deaths.py --count 500 --seed 0
    python tests/distributed/failures/random_deaths.py --cases 17,23 --show    # these again, with all seen

A case is a number; everything random in it follows from that number. 2 to 4 ranks on one or two pretended
hosts go through init, a new group, the first use of a card, mixed work and destroy; one of them dies on the
way. What is required:

- Every survivor raises DistBackendError within 5 s of the death on one host, and within the heartbeat's
  silence + 5 s on two, and the text holds the dead rank's number. The group's timeout is half an hour: a
  survivor that waits for it fails. Where the death comes in destroy, a survivor may also end well.
- A rank that dies before it has published itself in the very first meeting may take the timeout. It is then
  named as the one that did not join. (The timeout is short where this is sure to happen.)
- A survivor then destroys its group and ends, within another 5 s, and leaves nothing behind: no descriptor,
  no mapping, no process.

On a machine that is busy with other things, --slack multiplies the seconds.
"""

import functools
import itertools
import os
import random
import re
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import random_cases
import random_ranks
import torch
import torch.distributed as dist
from random_cases import Verdict
from random_ranks import Outcome

NOTICED = 5.0  # seconds from a death to the survivors' errors, on one host
HEARTBEAT = 5.0  # seconds that a peer on another host may be silent (VCCL_LINK_TIMEOUT)
TIMEOUT = 1800.0  # seconds; of the groups, where it is not to expire
SHORT_TIMEOUT = 4.0  # where it is

# The ranks of a group meet when it is made, for the CPU and for messages, and when it first has a card's
# tensor.
STAGES = ("init", "cpu", "new_group", "group_cpu", "card", "group_card", "work", "destroy")
ABRUPT = ("SIGKILL", "SIGSEGV", "_exit")
GENTLE = ("exception", "return")


# ---------------------------------------------------------------------------------------------------------
# Cases


@dataclass
class Case:
    """What happens in a run. From the begin of `stage`, the victim dies after `amount` of `after`: "nothing",
    "calls" of the store, "steps" of the work, or "ms"."""

    number: int
    size: int
    hosts: list[str]
    victim: int
    kind: str
    stage: str
    after: str
    amount: int
    members: list[int]  # of the new group
    bound: bool  # with init_process_group(device_id=...)
    timeout: float = TIMEOUT
    steps: int = 0  # of work before destroying; 0: until a rank raises

    @property
    def surely_unpublished(self) -> bool:
        return self.stage == "init" and self.after == "nothing"


def make_case(number: int) -> Case:
    random_ = random.Random(number)
    size = random_.choice((2, 3, 4))
    hosts = ["a"] * size
    if random_.random() < 0.5:
        hosts = ["a", "b"] + [random_.choice("ab") for _ in range(size - 2)]
        random_.shuffle(hosts)
    victim = random_.randrange(size)
    stage = random_.choices(STAGES, weights=(4, 2, 4, 2, 5, 5, 8, 3))[0]
    kind = random_.choice(ABRUPT + GENTLE)
    after, amount = "nothing", 0
    if stage == "work":
        after, amount = random_.choice((("steps", random_.randrange(30)), ("ms", random_.randrange(200))))
    elif kind in ABRUPT:
        after = random_.choice(("nothing", "calls", "calls", "ms"))
        amount = random_.randrange(12) if after == "calls" else random_.randrange(60)
    if kind in GENTLE and after == "ms":  # another thread cannot make the rank return
        after, amount = "steps", amount % 30
    members = sorted(random_.sample(range(size), random_.randint(2, size)))
    if random_.random() < 0.7 and victim not in members:
        members = list(range(size))
    case = Case(number, size, hosts, victim, kind, stage, after, amount, members, random_.random() < 0.2)
    case.steps = random_.randrange(1, 10) if stage == "destroy" else 0
    if case.surely_unpublished:
        case.timeout = SHORT_TIMEOUT
    return case


# ---------------------------------------------------------------------------------------------------------
# A rank


class Return(BaseException):
    """Makes a rank return from its main function."""


class Fate:
    """When and how this rank dies."""

    def __init__(self, case: Case, rank: int, tell: Any) -> None:
        self.case, self.tell, self.doomed = case, tell, rank == case.victim
        self.stage, self.calls = "", 0

    def enter(self, stage: str) -> None:
        if self.doomed and self.stage == self.case.stage and self.case.after != "steps":
            self.die()  # its moment was to come in the stage that is over, and did not
        self.stage, self.calls = stage, 0
        self.tell("enters")
        if self.doomed and stage == self.case.stage:
            if self.case.after == "nothing":
                self.die()
            if self.case.after == "ms":
                threading.Thread(target=self.die_later, daemon=True).start()

    def step(self, number: int) -> None:
        if self.doomed and self.case.after == "steps" and number >= self.case.amount:
            self.die()

    def store_call(self) -> None:
        if self.doomed and self.stage == self.case.stage and self.case.after == "calls":
            self.calls += 1
            if self.calls > self.case.amount:
                self.die()

    def die_later(self) -> None:
        time.sleep(self.case.amount / 1000)
        self.die()

    def die(self) -> None:
        self.tell("dies")
        match self.case.kind:
            case "exception":
                raise RuntimeError("the death of this rank, on purpose")
            case "return":
                raise Return
            case "_exit":
                os._exit(7)
            case name:
                os.kill(os.getpid(), getattr(signal, name))
                time.sleep(60)


class CountingStore(dist.Store):
    """A store that tells how often it is called, and when this rank has published itself."""

    def __init__(self, store: dist.Store, fate: Fate) -> None:
        super().__init__()
        self.store, self.fate, self.published = store, fate, False

    def set(self, key: str, value: bytes) -> None:
        publishes = not self.published and "/joined/" in key
        self.fate.store_call()
        if publishes:
            self.published = True
            self.fate.tell("publishes")
        self.store.set(key, value)
        if publishes:
            self.fate.tell("published")
        self.fate.store_call()

    def get(self, key: str) -> bytes:
        self.fate.store_call()
        return self.store.get(key)

    def add(self, key: str, amount: int) -> int:
        self.fate.store_call()
        return self.store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        self.fate.store_call()
        return self.store.check(keys)

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=TIMEOUT)) -> None:
        self.fate.store_call()
        self.store.wait(keys, timeout)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        return self.store.compare_set(key, expected, desired)

    def delete_key(self, key: str) -> bool:
        return self.store.delete_key(key)

    def num_keys(self) -> int:
        return self.store.num_keys()

    def set_timeout(self, timeout: timedelta) -> None:
        self.store.set_timeout(timeout)


class Rank(random_ranks.Rank):
    def __init__(self, case: Case, rank: int, port: int, prefix: str, pipe: int) -> None:
        super().__init__(case, rank, pipe)
        self.fate = Fate(case, rank, self.tell)
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        self.store = CountingStore(dist.PrefixStore(prefix, store), self.fate)

    def tell(self, event: str, **more: Any) -> None:
        super().tell(event, stage=self.fate.stage, **more)

    def dies_of(self, error: Exception) -> bool:
        return self.fate.doomed and "on purpose" in str(error)

    def run(self) -> int:
        try:
            return super().run()
        except Return:
            return 0

    def work_through(self) -> None:
        case, enter = self.case, self.fate.enter
        enter("init")
        device = torch.device("vdev", self.rank) if case.bound else None
        dist.init_process_group(
            "vccl",
            store=self.store,
            rank=self.rank,
            world_size=case.size,
            timeout=timedelta(seconds=case.timeout),
            device_id=device,
        )
        enter("cpu")
        self.all_reduce(None, "cpu")
        enter("new_group")
        group = dist.new_group(case.members)
        member = self.rank in case.members
        enter("group_cpu")
        if member:
            self.all_reduce(group, "cpu")
        enter("card")
        self.all_reduce(None, "vdev")
        enter("group_card")
        if member:
            self.all_reduce(group, "vdev")
        enter("work")
        same = random.Random(case.number)  # all ranks do the same
        step = 0
        while not case.steps or step < case.steps:
            self.fate.step(step)
            self.mixed(same, group if member else None, same.random() < 0.3)
            step += 1
        enter("destroy")
        dist.destroy_process_group()
        enter("over")

    def all_reduce(self, group: Any, device: str, count: int = 100, async_op: bool = False) -> None:
        x = torch.ones(count, device=device)
        work = dist.all_reduce(x, group=group, async_op=async_op)
        if work is not None:
            work.wait()
        assert x[0].item() == dist.get_world_size(group), "a wrong number, and no error"

    def mixed(self, same: random.Random, group: Any, in_group: bool) -> None:
        """One step of the work. `in_group`: in the new group, by its members."""
        device = same.choice(("cpu", "vdev"))
        count = same.choice((1, 100, 10_000, 300_000))
        what = same.choice(("all_reduce", "async", "broadcast", "all_gather", "barrier", "messages"))
        if in_group and group is None:
            return
        group = group if in_group else None
        size, me = dist.get_world_size(group), dist.get_rank(group)
        if what in ("all_reduce", "async"):
            self.all_reduce(group, device, count, what == "async")
        elif what == "broadcast":
            x = torch.full((count,), float(me), device=device)
            dist.broadcast(x, group_src=size - 1, group=group)
            assert x[-1].item() == size - 1, "a wrong number, and no error"
        elif what == "all_gather":
            x = torch.full((count,), float(me), device=device)
            out = torch.empty(count * size, device=device)
            dist.all_gather_into_tensor(out, x, group=group)
            assert out[-1].item() == size - 1, "a wrong number, and no error"
        elif what == "barrier":
            dist.barrier(group)
        else:
            x, got = torch.full((count,), float(me), device=device), torch.empty(count, device=device)
            works = [
                dist.irecv(got, group=group, group_src=(me - 1) % size),
                dist.isend(x, group=group, group_dst=(me + 1) % size),
            ]
            for work in works:
                work.wait()
            assert got[0].item() == (me - 1) % size, "a wrong number, and no error"


# ---------------------------------------------------------------------------------------------------------
# The server


class Attendant(random_ranks.Attendant):
    def __init__(self, case: Case, slack: float, pids: dict[int, int], pipe: int) -> None:
        super().__init__(case, pids, pipe, Outcome())
        self.slack = slack

    def attend(self) -> None:
        if self.until(lambda: self.case.victim in self.outcome.gone):
            # To raise, and to end.
            self.until(self.all_have_ended, allowed(self.case, self.slack) + NOTICED * self.slack)


def play(order: dict[str, Any]) -> Rank | Outcome:
    case = Case(**order["case"])

    def become(rank: int, pipe: int) -> Rank:
        if len(set(case.hosts)) > 1:
            os.environ["VCCL_HOSTID"] = case.hosts[rank]
        return Rank(case, rank, order["port"], order["prefix"], pipe)

    return random_ranks.play(case.size, become, functools.partial(Attendant, case, order["slack"]))


def allowed(case: Case, slack: float) -> float:
    """Seconds from the death to a survivor's error."""
    seconds = NOTICED + (HEARTBEAT if len(set(case.hosts)) > 1 else 0)
    return seconds * slack + (case.timeout if case.timeout < TIMEOUT else 0)


# ---------------------------------------------------------------------------------------------------------
# The judge


def judge(case: Case, outcome: Outcome, slack: float) -> Verdict:
    """`excused`: the victim may not have published itself, and nobody noticed its death."""
    verdict = Verdict([*outcome.faults_of_server()])
    fault = verdict.faults.append
    if not outcome.event(case.victim, "dies"):
        fault(f"rank {case.victim} did not come to its death: {outcome.event(case.victim, 'raised')}")
        return verdict
    death = outcome.gone[case.victim]
    published = outcome.event(case.victim, "published")
    for rank in set(range(case.size)) - {case.victim}:
        raised, ended = outcome.event(rank, "raised"), outcome.event(rank, "ended")
        if raised:
            verdict.latency = max(verdict.latency, raised["time"] - death)
            for text in faults_of_error(case, raised, death, slack):
                fault(f"rank {rank} {text}: {raised['type']} in {raised['stage']}: {raised['text']}")
        elif rank in outcome.silent and not published and case.timeout == TIMEOUT:
            verdict.excused = True
            continue
        elif not ended:
            stage = [e["stage"] for e in outcome.events if e["rank"] == rank and e["event"] == "enters"][-1:]
            fault(f"rank {rank} did not raise; it was in {stage}, and ended with {outcome.status[rank]}")
            continue
        elif case.stage != "destroy":
            fault(f"rank {rank} ended as if nobody had died")
        verdict.faults += outcome.faults_of_end(rank)
    return verdict


def faults_of_error(case: Case, raised: dict[str, Any], death: float, slack: float) -> list[str]:
    found = []
    if raised["type"] != "DistBackendError":
        found.append("raised another type")
    # Errors of the new group call its ranks by their numbers in the job, too: "rank 2 (1 of group 1)".
    if not re.search(rf"\brank {case.victim}\b", raised["text"], re.IGNORECASE):
        found.append(f"did not name rank {case.victim}")
    if case.surely_unpublished and "did not join" not in raised["text"]:
        found.append("did not say who has not joined")
    if raised["time"] - death > allowed(case, slack):
        found.append(f"raised {raised['time'] - death:.1f} s after the death")
    return found


def main() -> int:
    args = random_cases.arguments(__doc__, count=500)
    server = random_cases.Server(functools.partial(random_ranks.serve, play))
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    runs = itertools.count(1)

    def run(case: Case, slack: float) -> tuple[Outcome, Verdict]:
        order = {"case": asdict(case), "port": store.port, "prefix": f"run {next(runs)}", "slack": slack}
        outcome = Outcome(**server.ask(order))
        return outcome, judge(case, outcome, slack)

    def measured(case: Case) -> str | None:
        return f"on {len(set(case.hosts))} host(s)" if case.timeout == TIMEOUT else None

    status = random_cases.run_all(args, make_case, run, measured)
    server.close()
    return status


if __name__ == "__main__":
    sys.exit(main())
