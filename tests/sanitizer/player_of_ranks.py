"""Plays random programs on a rank, and compares what the sanitizer says of each access with the oracle."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from author_of_ranks import CARDS, GATHERED, PINNED, STEPS, STREAMS, Author, sizes_of
from newer_names import all_gather_single, reduce_scatter_single
from oracle_of_ranks import HOST, Lane, Oracle
from racing import NEVER_RECORDED
from statements_of_ranks import (
    Free,
    Launch,
    Order,
    Statement,
    ask_event,
    ask_stream,
    ask_work,
    host_waits_for_card,
    host_waits_for_event,
    host_waits_for_stream,
    keep_for,
    record,
    stream,
    stream_waits_for_event,
    stream_waits_for_stream,
    stream_waits_for_work_of_host,
    wait_for_future,
    wait_for_work,
)

import vccl.sanitizer

EVENTS = 3
FILE = "random program"  # the name of the program's file in reports


@dataclass
class Verdict:
    """What came out of one program on one rank."""

    lines: int = 0
    accesses: int = 0
    racing: int = 0
    is_clean: bool = True  # nothing races, even if messages have no order
    wrong: list[str] = field(default_factory=list)
    text: str = ""


class Player:
    """Plays statements, and tells two oracles of each.

    The first one judges as the sanitizer has to. With the other one, programs are written that are right even
    if messages come in any order.
    """

    def __init__(self, rank: int, author: Author, groups: dict[str, Any]) -> None:
        self.rank, self.author = rank, author
        self.judge, self.strict = Oracle(True), Oracle(False)
        self.played: list[Statement] = []
        self.variables: dict[str, Any] = {
            "torch": torch,
            "dist": dist,
            "all_gather_single": all_gather_single,
            "reduce_scatter_single": reduce_scatter_single,
            "groups": groups,
            "s": [torch.vdev.default_stream(), *(torch.vdev.Stream() for _ in range(STREAMS - 1))],
            "e": [torch.vdev.Event() for _ in range(EVENTS)],
        }
        # The values of a program's beginning, which the author changes as it goes on.
        for name in sizes_of(author.ranks):
            values = torch.from_numpy(author.values[rank][name].copy())
            if name in (*CARDS, *GATHERED):
                values = values.to("vdev")
            self.variables[name] = values.pin_memory() if name in PINNED else values

    def play(self, statement: Statement) -> None:
        self.played.append(statement)
        line = len(self.played)
        exec(compile("\n" * (line - 1) + statement.text, FILE, "exec"), self.variables)
        for oracle in (self.judge, self.strict):
            statement.tell(oracle, line, self.variables)

    def may_play(self, statement: Statement) -> bool:
        """Returns whether what the statement needs is there, which a statement that was left out may make."""
        if isinstance(statement, Free) and not statement.may_run(self.strict):
            return False
        return all(self.variables.get(name) is not None for name in statement.needs)

    def replay(self, statements: Iterable[Statement]) -> None:
        for statement in statements:
            if self.may_play(statement):
                self.play(statement)

    def verdict(self, reports: list[dict[str, Any]]) -> Verdict:
        """Compares what the sanitizer has reported with what the oracle says."""
        wrong = []
        told: Counter[int] = Counter()
        for report in reports:
            if report["kind"] == NEVER_RECORDED:  # the oracle judges accesses, and not waits
                continue
            first, second = report["first"]["line"], report["second"]["line"]
            told[second] += report["count"]
            pairs: set[tuple[int, str]] = set().union(*self.judge.verdicts.get(second, ()))
            if (first, report["kind"]) not in pairs:
                wrong.append(
                    f"line {second}: reported as {report['kind']} with line {first}, not one of {pairs}"
                )
        for line in sorted(told.keys() | self.judge.verdicts.keys()):
            expected = self.judge.verdicts.get(line, [])
            # An operator of the CPU may be made of others, each of which is an access.
            is_told = told[line] == len(expected) or (told[line] > 1 and self.is_of_host(line))
            if not (is_told and expected):
                wrong.append(f"line {line}: {told[line]} reports, and these races: {expected}")
        return Verdict(
            len(self.played),
            len(self.judge.accesses),
            sum(map(len, self.judge.verdicts.values())),
            not self.strict.verdicts,
            wrong,
            self.text(),
        )

    def is_of_host(self, line: int) -> bool:
        statement = self.played[line - 1]
        return isinstance(statement, Launch) and statement.waiter == HOST

    def wrong_values(self) -> list[str]:
        """Returns which tensors have not the values that the program has to give. Waits for everything."""
        self.finish()
        wrong = []
        made = self.author.made[self.rank]
        for name, expected in self.author.values[self.rank].items():
            if self.variables.get(name) is None or (name in made and not made[name].is_written):
                continue
            value = self.variables[name]
            value = value.cpu().numpy() if isinstance(value, torch.Tensor) else np.array(value)
            if not np.array_equal(value.reshape(-1), expected.reshape(-1)):
                wrong.append(f"{name} is {value.tolist()}, and has to be {expected.tolist()}")
        return wrong

    def finish(self) -> None:
        torch.vdev.synchronize()
        for work, handle in self.strict.handles.items():
            if not handle.gone:
                self.variables[work].wait()
        torch.vdev.synchronize()

    def text(self) -> str:
        lines = (f"{line:4}  {statement.text}" for line, statement in enumerate(self.played, 1))
        return "\n".join(lines)


class RightPlayer(Player):
    """Plays the author's program as it comes, and puts the waits into it without which it would race."""

    def __init__(self, rank: int, author: Author, groups: dict[str, Any], seed: int) -> None:
        super().__init__(rank, author, groups)
        self.random = random.Random(f"{seed} of rank {rank}")
        self.answers = 0

    def write_and_play(self) -> None:
        for statements in self.author.steps():
            while self.random.random() < 0.3:
                self.order_something()
            statement = statements.get(self.rank)
            if statement is None:
                continue
            if isinstance(statement, Launch):
                self.order_before(statement)
            elif isinstance(statement, Free):
                self.order_before_release(statement)
            self.play(statement)

    def order_before(self, statement: Launch) -> None:
        while racing := statement.racing(self.strict, len(self.played) + 1):
            waiter, access = self.random.choice(racing)
            self.put_before(waiter, access)

    def order_before_release(self, statement: Free) -> None:
        for work in statement.works:
            if not self.strict.handles[work].let_go:
                self.play(wait_for_work(work, self.any_stream()))
        memory = self.strict.memory[self.strict.place(statement.name)]
        assert memory.owner is not None
        while late := self.strict.late_for_reuse(statement.name):
            access = self.random.choice(late)
            holders = self.holders(access)
            if holders and self.random.random() < 0.6:
                self.play(keep_for(statement.name, self.random.choice(holders)))
            else:
                self.put_before(memory.owner, access)

    def any_stream(self) -> int:
        return self.random.randrange(STREAMS)

    def any_event(self) -> int:
        return self.random.randrange(EVENTS)

    def holders(self, access: int) -> list[int]:
        """Returns the streams whose next action comes after an access."""
        return [k for k in range(STREAMS) if self.strict.knows(stream(k), access)]

    def put_before(self, waiter: Lane, access: int) -> None:
        """Plays something that brings the access closer to being before what `waiter` does next."""
        oracle = self.strict
        ways: list[list[Order]] = []
        event, k = self.any_event(), self.any_stream()
        recorded = [number for number in range(EVENTS) if oracle.events[number] >> access & 1]
        for holder in self.holders(access):
            new = record(event, holder, self.random.randrange(2))
            if waiter == HOST:
                ways += [[host_waits_for_stream(holder)], [new, host_waits_for_event(event)]]
            else:
                form = self.random.randrange(2)
                ways += [[stream_waits_for_stream(waiter[1], holder)]] * 2
                ways += [[new, stream_waits_for_event(waiter[1], event, form)]] * 2
        for number in recorded:
            if waiter == HOST:
                ways.append([host_waits_for_event(number)])
            else:
                ways.append([stream_waits_for_event(waiter[1], number, self.random.randrange(2))])
        past = oracle.accesses[access]
        if waiter != HOST:
            k = waiter[1]
        if past.work is not None and not oracle.handles[past.work].gone:
            ways += [[order] for order in self.waits_for(past.work, k)] * (1 if ways else 3)
        if self.random.random() < 0.1 or not ways:
            ways.append([host_waits_for_card()])
        for order in self.random.choice(ways):
            self.play(order)

    def waits_for(self, work: str, k: int) -> list[Order]:
        handle = self.strict.handles[work]
        ways = [wait_for_work(work, k)]
        if handle.is_manager:
            return ways
        ways += [wait_for_work(work, k), wait_for_work(work, k, "synchronize")]
        if handle.has_future:
            ways.append(wait_for_future(work, k))
        if not handle.on_card:
            ways.append(stream_waits_for_work_of_host(work, k))
        return ways

    def order_something(self) -> None:
        """Plays a wait that nobody may need."""
        works = [work for work, handle in self.strict.handles.items() if not handle.gone]
        self.answers += 1
        answer = f"a{self.answers}"
        k, other, event = self.any_stream(), self.any_stream(), self.any_event()
        ways: list[tuple[float, list[Order]]] = [
            (2, [stream_waits_for_stream(k, other)]),
            (3, [record(event, k, self.random.randrange(2))]),
            (2, [stream_waits_for_event(k, event, self.random.randrange(2))]),
            (0.5, [host_waits_for_event(event)]),
            (0.5, [host_waits_for_stream(k)]),
            (0.3, [host_waits_for_card()]),
            (0.5, [ask_stream(k, answer)]),
            (0.5, [ask_event(event, answer)]),
        ]
        if works:
            work = self.random.choice(works[-5:])
            ways.append((2, [self.random.choice(self.waits_for(work, k))]))
            if not self.strict.handles[work].is_manager:
                ways.append((1, [ask_work(work, answer)]))
        made = [name for name in self.author.made[self.rank] if name in self.variables]
        if made:
            ways.append((1, [keep_for(self.random.choice(made), k)]))
        weights, orders = zip(*ways, strict=True)
        for order in self.random.choices(orders, weights)[0]:
            self.play(order)


def all_of(values: list[int]) -> list[int]:
    """Returns the least value of each place of all ranks. All of them have to call it."""
    least = torch.tensor(values)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return least.tolist()


@dataclass
class Played:
    """What programs have come to on one rank."""

    programs: int = 0
    accesses: int = 0
    racing: int = 0
    racing_programs: int = 0
    compared: int = 0  # programs whose values were compared
    failure: str = ""
    is_wrong: bool = False  # the failure is this rank's

    def add(self, other: Played) -> None:
        self.programs += other.programs
        self.accesses += other.accesses
        self.racing += other.racing
        self.racing_programs += other.racing_programs
        self.compared += other.compared


def make_groups(size: int, seed: int) -> tuple[dict[str, Any], dict[str, list[int]]]:
    numbers = random.Random(seed)
    members = {"world": list(range(size))}
    members["other"] = sorted(numbers.sample(range(size), numbers.randint(min(size, 2), size)))
    groups = {"world": dist.group.WORLD, "other": dist.new_group(members["other"])}
    return groups, members


def settle() -> None:
    torch.vdev.synchronize()
    torch.vdev.empty_cache()
    dist.barrier()


def play_programs(rank: int, size: int, seeds: list[int], leave_out: int) -> Played:
    """Plays programs that are right, and each of them `leave_out` times without one of its waits.

    Ends with the first one of which an oracle and a sanitizer have not said the same, on any rank.
    """
    played = Played()
    for seed in seeds:
        groups, members = make_groups(size, seed)
        play_program(played, rank, Author(seed, size, members), groups, seed, leave_out)
        torch.vdev.synchronize()
        if rank in members["other"]:
            dist.destroy_process_group(groups["other"])
        if played.failure:
            break
    return played


def play_program(
    played: Played, rank: int, author: Author, groups: dict[str, Any], seed: int, leave_out: int
) -> None:
    what = f"VCCL_TEST_SEED={seed}, rank {rank} of {author.ranks}"
    player = RightPlayer(rank, author, groups, seed)
    settle()
    with vccl.sanitizer.enabled() as found:
        player.write_and_play()
    replays = Replays(rank, seed, author, groups)
    go_on = conclude(played, player, found.reports, what, replays)
    waits = [place for place, statement in enumerate(player.played) if isinstance(statement, Order)]
    numbers = random.Random(f"{seed} without a wait on rank {rank}")
    for _ in range(leave_out):
        if not go_on:
            return
        out = numbers.choice(waits) if waits else -1
        other, reports = replays.play(
            [statement for place, statement in enumerate(player.played) if place != out]
        )
        go_on = conclude(played, other, reports, f"{what} without line {out + 1}", replays)


@dataclass
class Replays:
    """Plays parts of a program again. All ranks have to do so."""

    rank: int
    seed: int
    author: Author
    groups: dict[str, Any]

    def play(self, statements: list[Statement]) -> tuple[Player, list[dict[str, Any]]]:
        player = Player(self.rank, Author(self.seed, self.author.ranks, self.author.groups), self.groups)
        player.author = self.author
        settle()
        with vccl.sanitizer.enabled() as found:
            player.replay(statements)
        return player, found.reports

    def shrink(self, statements: list[Statement]) -> tuple[Player, Verdict]:
        """Leaves out what is not needed for a disagreement, on one rank or another."""
        for step in range(1, STEPS + 1):
            fewer = self.without(statements, step)
            if self.disagree(fewer):
                statements = fewer
        (longest,) = all_of([-len(statements)])
        for place in range(-longest - 1, -1, -1):
            is_wait = place < len(statements) and isinstance(statements[place], Order)
            fewer = statements[:place] + statements[place + 1 :] if is_wait else statements
            if self.disagree(fewer):
                statements = fewer
        player, reports = self.play(statements)
        verdict = player.verdict(reports)
        player.finish()
        return player, verdict

    def without(self, statements: list[Statement], step: int) -> list[Statement]:
        """Leaves out a step, and on all ranks the steps that need what it makes on one of them."""
        left_out = {step}
        while True:
            fewer = [statement for statement in statements if statement.step not in left_out]
            launches = [statement for statement in fewer if isinstance(statement, Launch)]
            there = {*sizes_of(self.author.ranks), *(launch.makes for launch in launches)}
            left_out_here = left_out | {launch.step for launch in launches if launch.needs - there}
            kept = all_of([number not in left_out_here for number in range(STEPS + 1)])
            if len(left_out) == kept.count(0):
                return fewer
            left_out = {number for number in range(STEPS + 1) if not kept[number]}

    def disagree(self, statements: list[Statement]) -> bool:
        player, reports = self.play(statements)
        wrong = player.verdict(reports).wrong
        player.finish()
        return all_of([not wrong])[0] == 0


def conclude(
    played: Played, player: Player, reports: list[dict[str, Any]], what: str, replays: Replays
) -> bool:
    """Adds a program to what was played. Returns whether no rank has failed."""
    verdict = player.verdict(reports)
    wrong = verdict.wrong
    (clean,) = all_of([verdict.is_clean])
    values = player.wrong_values()
    if clean:
        played.compared += 1
        wrong = wrong + values
    played.programs += 1
    played.accesses += verdict.accesses
    played.racing += verdict.racing
    played.racing_programs += verdict.racing > 0
    if wrong:
        played.is_wrong = True
        played.failure = f"{what}\n{verdict.text}\n" + "\n".join(wrong)
    (agree, go_on) = all_of([not verdict.wrong, not wrong])
    if not agree:
        shrunk, its = replays.shrink(player.played)
        if its.wrong:
            wrong = [*wrong, "", "The same in short:", shrunk.text(), *its.wrong]
            played.failure = f"{what}\n{verdict.text}\n" + "\n".join(wrong)
    if not go_on and not wrong:
        played.failure = f"{what}, where nothing is wrong\n{verdict.text}"
    return bool(go_on)
