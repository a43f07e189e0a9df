"""Changes the arguments of a call."""

from __future__ import annotations

import re

import libcst as cst

from vccl.convert.plan import Plan


def argument(call: cst.Call, position: int | None, *keywords: str) -> cst.Arg | None:
    """Returns the argument that is given at a position or by one of the keywords."""
    for index, arg in enumerate(call.args):
        if arg.star:
            position = None
        elif arg.keyword is not None:
            if arg.keyword.value in keywords:
                return arg
        elif index == position:
            return arg
    return None


def has_star(call: cst.Call) -> bool:
    return any(arg.star for arg in call.args)


def prepend(plan: Plan, call: cst.Call, text: str) -> None:
    """Adds an argument before the others."""
    if call.args:
        plan.insert(plan.source.span(call.args[0])[0], f"{text}, ")
    else:
        plan.insert(plan.source.span(call)[1] - 1, text)


def drop_keyword(plan: Plan, arg: cst.Arg) -> None:
    """Makes `name=value` the bare value."""
    start = plan.source.span(arg)[0]
    match = re.compile(r"\w+\s*=\s*").match(plan.source.text, start)
    if match is not None:
        plan.replace_span(start, match.end(), "")


def add_keyword(plan: Plan, arg: cst.Arg, name: str) -> None:
    plan.insert(plan.source.span(arg)[0], f"{name}=")


def remove(plan: Plan, call: cst.Call, arg: cst.Arg) -> None:
    """Takes an argument out, with its comma. Comments stay."""
    text, span = plan.source.text, plan.source.span
    start, end = span(arg)
    index = call.args.index(arg)
    before = span(call.args[index - 1])[1] if index > 0 else text.rindex("(", span(call.func)[1], start) + 1
    after = span(call.args[index + 1])[0] if index + 1 < len(call.args) else span(call)[1] - 1
    if "#" in text[before:start] + text[end:after]:
        comma = re.compile(r"\s*,?[ \t]*").match(text, end)
        plan.replace_span(start, comma.end() if comma else end, "")
    elif index + 1 < len(call.args):
        plan.replace_span(start, after, "")
    elif index > 0:
        plan.replace_span(before, end, "")
    else:
        plan.replace_span(before, after, "")
