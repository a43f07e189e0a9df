"""The rules of a plan: reads them as text, JSON or dicts, and refuses what no plan has."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

OPERATIONS = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "gather_single",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)
MATMUL = "matmul"
PHASES = ("init", "new_group", "first_use", "destroy", "checkpoint")
MEETINGS = ("init", "new_group", "first_use")
MOMENTS = ("before", "during", "after")
KEYS = ("rank", "host", "group", "op", "step", "restart", "phase", "n", "every", "p", "at", "do")
# The longest stall. What waits for a rank in a plan must end some day.
MOST_SECONDS = 86_400.0
MOST_BITS = 1_000_000
MOST_TIMES = 1_000_000.0
# transport/link_faults.hpp has the same.
MOST_MILLISECONDS = 60_000.0
LINK_KINDS = ("reset-link", "cut-link", "drop-link", "delay-link", "loss-link")

Ranges = tuple[tuple[int, int], ...]
"""Pairs of first and last numbers. An empty one stands for every number."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """Where a fault strikes, and what it does. An empty text stands for everything, and 0 for no number."""

    kind: str
    amount: float = 0.0
    type: str = ""
    rank: Ranges = ()
    host: str = ""
    group: str = ""
    op: str = ""
    step: Ranges = ()
    restart: Ranges = ()
    phase: str = ""
    n: int = 0
    every: int = 0
    p: float = 1.0
    at: str = "before"

    def words(self) -> str:
        """Returns the rule as a plan has it."""
        parts = []
        for key in ("rank", "step", "restart"):
            if ranges := getattr(self, key):
                each = (str(first) if first == last else f"{first}-{last}" for first, last in ranges)
                parts.append(f"{key}={'+'.join(each)}")
        parts += [
            f"{key}={getattr(self, key)}" for key in ("host", "group", "op", "phase") if getattr(self, key)
        ]
        parts += [f"{key}={getattr(self, key)}" for key in ("n", "every") if getattr(self, key)]
        if self.p != 1.0:
            parts.append(f"p={self.p:g}")
        if self.kind not in ("sdc", "slow"):
            parts.append(f"at={self.at}")
        amount = self.type or (f"{self.amount:g}" if self.amount or self.kind == "exit" else "")
        parts.append(f"do={self.kind}{':' * bool(amount)}{amount}")
        return ",".join(parts)


@dataclasses.dataclass(frozen=True)
class Rules:
    """The rules of a plan, and the seed of its chances."""

    rules: tuple[Rule, ...]
    seed: int = 0

    def words(self) -> str:
        """Returns the plan as text."""
        return ";".join([*(rule.words() for rule in self.rules), f"seed={self.seed}"])


Given = str | Mapping[str, Any] | Iterable[Mapping[str, Any]]
"""A plan as text, the dict of one rule, a list of such dicts, or a dict of ``rules`` and a ``seed``."""


def read(given: Given) -> Rules:
    """Returns the rules of a plan.

    Raises:
        ValueError: a key, a kind or a value is none that a plan has, or they do not go together.
        OSError: the file of ``@file`` cannot be read.
    """
    if isinstance(given, str):
        text = given.strip()
        if text.startswith("@"):
            text = Path(text[1:]).read_text().strip()
        if text.startswith(("{", "[")):
            try:
                return read(json.loads(text))
            except json.JSONDecodeError as error:
                raise ValueError(f"a plan of faults is no JSON: {error}") from error
        return _of_text(text)
    if isinstance(given, Mapping):
        if "rules" not in given:
            return _of_dicts([given], 0)
        if unknown := set(given) - {"rules", "seed"}:
            raise ValueError(f"a plan of faults has rules and seed, and no {sorted(unknown)[0]!r}")
        return _of_dicts(given["rules"], given.get("seed", 0))
    return _of_dicts(given, 0)


def _of_text(text: str) -> Rules:
    lines = (line.partition("#")[0] for line in text.splitlines())
    rules: list[dict[str, str]] = []
    seed: str | int = 0
    for part in ";".join(lines).split(";"):
        words = [word.strip() for word in part.split(",") if word.strip()]
        if not words:
            continue
        rule: dict[str, str] = {}
        for word in words:
            key, equals, value = (piece.strip() for piece in word.partition("="))
            if not equals:
                raise ValueError(
                    f"{word!r} in a plan of faults is not of the form key=value. {_allowed_keys()}"
                )
            if key in rule:
                raise ValueError(f"{key}= stands twice in {part.strip()!r} of a plan of faults")
            rule[key] = value
        if set(rule) == {"seed"}:
            seed = rule["seed"]
        else:
            rules.append(rule)
    return _of_dicts(rules, seed)


def _of_dicts(given: Iterable[Mapping[str, Any]], seed: str | int) -> Rules:
    rules = tuple(_rule_of(dict(rule)) for rule in given)
    if not rules:
        raise ValueError(
            f"a plan of faults has no rule, such as rank=1,op=all_reduce,do=kill. {_allowed_keys()}"
        )
    return Rules(rules, _whole("seed", seed, 0, 2**64 - 1))


def _allowed_keys() -> str:
    return f"The keys are {', '.join(KEYS)}; seed stands alone, between semicolons."


def _rule_of(given: dict[str, Any]) -> Rule:
    if unknown := set(given) - set(KEYS):
        raise ValueError(f"{sorted(unknown)[0]!r} is no key of a plan of faults. {_allowed_keys()}")
    if "do" not in given:
        raise ValueError(f"a rule of a plan of faults says what it does: do=. The kinds are {_kinds_text()}")
    kind, amount, type_ = _what_of(str(given["do"]))
    named = {
        key: value
        for key in ("host", "group", "op", "phase")
        if (value := str(given.get(key, "*"))) not in ("*", "")
    }
    rule = Rule(
        kind,
        amount,
        type_,
        rank=_ranges("rank", given.get("rank", "*")),
        step=_ranges("step", given.get("step", "*")),
        restart=_ranges("restart", given.get("restart", "*")),
        n=_whole("n", given["n"], 1, 2**63) if "n" in given else 0,
        every=_whole("every", given["every"], 1, 2**63) if "every" in given else 0,
        p=_number("p", given.get("p", 1.0), 0.0, 1.0),
        at=_one_of("at", str(given.get("at", _usual_moment(kind))), MOMENTS),
        **named,
    )
    if rule.op:
        _one_of("op", rule.op, (*OPERATIONS, MATMUL))
    if rule.phase:
        _one_of("phase", rule.phase, PHASES)
    _check_together(rule, "at" in given)
    return rule


def _usual_moment(kind: str) -> str:
    return "after" if kind == "sdc" else "before"


def _seconds(kind: str, text: str) -> float:
    return _number(kind, text, 0.0, MOST_SECONDS, above=True)


def _exception(kind: str, text: str) -> str:
    module, _, name = text.rpartition(".")
    try:
        found = getattr(importlib.import_module(module or "builtins"), name, None)
    except ImportError:
        found = None
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        raise ValueError(
            f"do={kind}:{text} of a plan of faults names no exception type; allowed are Python's own, such "
            "as RuntimeError, and those of modules, such as torch.distributed.DistBackendError"
        )
    return text


# What stands behind the colon of each kind, and how it is read. None: there is nothing.
_Reader = Callable[[str, str], float | str]
KINDS: dict[str, tuple[str, _Reader | None]] = {
    "kill": ("", None),
    "segv": ("", None),
    "abort": ("", None),
    "exit": (":N", lambda kind, text: float(_whole(kind, text, 0, 255))),
    "raise": (":Type", _exception),
    "stall": (":SECONDS", _seconds),
    "late": (":SECONDS", _seconds),
    "stop": ("[:SECONDS]", _seconds),
    "slow": (":TIMES", lambda kind, text: _number(kind, text, 1.0, MOST_TIMES)),
    "corrupt": (":BITS", lambda kind, text: float(_whole(kind, text, 1, MOST_BITS))),
    "nan": ("", None),
    "oom": ("", None),
    "sdc": ("", None),
    "lose-host": ("", None),
    "reset-link": ("", None),
    "cut-link": (":SECONDS", _seconds),
    "drop-link": ("", None),
    "delay-link": (
        ":MILLISECONDS",
        lambda kind, text: _number(kind, text, 0.0, MOST_MILLISECONDS, above=True),
    ),
    "loss-link": (":P", lambda kind, text: _number(kind, text, 0.0, 1.0, above=True)),
    "full-disk": ("", None),
    "no-descriptors": ("", None),
}


def _kinds_text() -> str:
    return ", ".join(kind + behind for kind, (behind, _) in KINDS.items())


def _what_of(text: str) -> tuple[str, float, str]:
    kind, colon, value = text.partition(":")
    if kind not in KINDS:
        raise ValueError(f"do={text} is no kind of a plan of faults. The kinds are {_kinds_text()}")
    behind, reader = KINDS[kind]
    if reader is None and colon:
        raise ValueError(f"do={text} of a plan of faults: {kind} takes nothing behind a colon")
    if reader is not None and not colon and not behind.startswith("["):
        raise ValueError(f"do={text} of a plan of faults: {kind} is given as {kind}{behind}")
    if reader is None or not colon:
        return kind, 0.0, ""
    read_ = reader(kind, value)
    return (kind, 0.0, read_) if isinstance(read_, str) else (kind, read_, "")


def _check_together(rule: Rule, at_is_given: bool) -> None:
    def refuse(why: str) -> None:
        raise ValueError(f"do={rule.kind} of a plan of faults {why}")

    if rule.phase:
        if rule.op:
            refuse(f"is for phase={rule.phase} and for op={rule.op}: a phase has no operation")
        if rule.kind in ("slow", "corrupt", "nan", "sdc"):
            refuse(f"is for operations, and not for phase={rule.phase}")
        if rule.at == "during":
            refuse(f"strikes phase={rule.phase} at=before or at=after, and not at=during")
    if rule.kind == "late" and (rule.at != "before" or not (rule.phase in MEETINGS or rule.op == "barrier")):
        refuse(
            f"is for a meeting, at=before: phase={', phase='.join(MEETINGS)} or op=barrier. Elsewhere, a "
            "rank is made to wait by stall"
        )
    if rule.kind in LINK_KINDS and (rule.phase, rule.at) == ("init", "before"):
        refuse("strikes links, and before phase=init there are none: at=after is when they are there")
    if rule.kind == "raise" and rule.at != "before":
        refuse("is raised by the call, so it strikes at=before")
    if rule.kind in ("corrupt", "nan") and rule.at == "during":
        refuse("changes what a rank contributes (at=before) or what it has received (at=after)")
    if rule.kind in ("corrupt", "nan") and rule.op == "barrier":
        refuse("has no buffer in a barrier")
    if rule.kind in ("corrupt", "nan") and (rule.op, rule.at) in (("send", "after"), ("recv", "before")):
        refuse(f"has nothing to change at={rule.at} of a {rule.op}")
    if rule.kind in ("slow", "sdc") and at_is_given:
        refuse("is for the whole of an operation, and takes no at=")
    if (rule.op == MATMUL) != (rule.kind == "sdc") and (rule.op == MATMUL or rule.op):
        refuse(f"does not go with op={rule.op}: sdc is for op={MATMUL}, and {MATMUL} is for sdc")


def _one_of(key: str, value: str, allowed: Iterable[str]) -> str:
    if value not in allowed:
        raise ValueError(
            f"{key}={value} is not allowed in a plan of faults; allowed are {', '.join(allowed)} and *"
        )
    return value


def _whole(key: str, value: object, least: int, most: int) -> int:
    text = str(value)
    if re.fullmatch(r"\d{1,20}", text) is None or not least <= int(text) <= most:
        raise ValueError(
            f"{key}={value} is not allowed in a plan of faults; allowed is a whole number from {least} to "
            f"{most}"
        )
    return int(text)


def _number(key: str, value: object, least: float, most: float, above: bool = False) -> float:
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not (least <= number <= most) or (above and number == least):
        raise ValueError(
            f"{key}={value} is not allowed in a plan of faults; allowed is a number "
            f"{'above' if above else 'from'} {least:g} {'and up' if above else ''}".rstrip()
            + f" to {most:g}"
        )
    return number


def _ranges(key: str, value: object) -> Ranges:
    """Reads ``*``, a number, ``1+3``, ``2-5``, or a list of numbers."""
    text = "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    if text == "*":
        return ()
    ranges = []
    for part in text.split("+"):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            raise ValueError(
                f"{key}={text} is not allowed in a plan of faults; allowed are a number (1), several (1+3), "
                "a range (2-5), and *"
            )
        ranges.append((first, last))
    return tuple(ranges)
