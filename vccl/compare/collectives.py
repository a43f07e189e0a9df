"""Operators that exchange tensors between ranks, and what ranks have to agree about because of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")


def is_collective(function: Any) -> bool:
    return function.namespace in _NAMESPACES


def brings_later(function: Any) -> bool:
    """Returns whether the operator's results are not there yet when the call returns."""
    return is_collective(function) and not function.name().endswith("::wait_tensor")


def groups_in(function: Any, args: tuple, kwargs: dict) -> list[str]:
    """Returns the names of the process groups among the arguments of a collective."""
    names: list[str] = []
    for argument, value in zip(function._schema.arguments, args, strict=False):
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(argument.type):
            names.append(str(dist.ProcessGroup.unbox(value).group_name))
        elif argument.name == "group_name":
            names.append(str(value))
    if "group_name" in kwargs:
        names.append(str(kwargs["group_name"]))
    return names


def any_rank(mine: bool, groups: list[str]) -> bool:
    """Returns whether something is true on one of the ranks of some groups.

    All of their ranks call it. They pass it on from group to group, as in a mesh of several dimensions.
    """
    for name in groups:
        group = dist.distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type]
        answers: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(answers, mine, group=group)
        mine = any(answers)
    return mine
