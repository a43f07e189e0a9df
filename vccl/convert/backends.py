"""Lets torch choose the backend of a process group where a script names NCCL."""

from __future__ import annotations

import re

import libcst as cst

from vccl.convert.arguments import argument, remove
from vccl.convert.devices import OPTION_FUNCTIONS
from vccl.convert.plan import Plan
from vccl.convert.strings import text_of

_INIT = re.compile(r"torch\.distributed\.(?:distributed_c10d\.)?init_process_group")
_GET_BACKEND = re.compile(r"torch\.distributed\.(?:distributed_c10d\.)?get_backend\w*")
_NEW_GROUP = re.compile(r"torch\.distributed\.(?:distributed_c10d\.)?(?:new_group|new_subgroups\w*)")
_BACKEND_NAME = re.compile(r"(?:.*_)?backend", re.IGNORECASE)
_BACKEND_OPTION = re.compile(r"--?(?:[\w-]+[-_])?backend")


def convert(plan: Plan, nodes: list[cst.CSTNode]) -> None:
    calls = [node for node in nodes if isinstance(node, cst.Call)]
    initial = [call for call in calls if _INIT.fullmatch(plan.names.full_name(call.func) or "")]
    # Whether the default backend is NCCL, as far as the script says.
    is_default = bool(initial) and all(_is_nccl_or_none(argument(call, 0, "backend")) for call in initial)
    # Torch calls a backend that it chose itself "undefined".
    asks = any(_GET_BACKEND.fullmatch(plan.names.full_name(call.func) or "") for call in calls)
    for call in initial:
        if not asks:
            _drop(plan, call, argument(call, 0, "backend"))
    for call in calls:
        if _NEW_GROUP.fullmatch(plan.names.full_name(call.func) or "") and is_default:
            _drop(plan, call, argument(call, None, "backend"))
        _convert_call(plan, call)
    for node in nodes:
        _convert_variable(plan, node)
        if isinstance(node, cst.IfExp) and {text_of(node.body), text_of(node.orelse)} == {"nccl", "gloo"}:
            _convert_value(plan, node)


def _is_nccl_or_none(arg: cst.Arg | None) -> bool:
    return arg is None or text_of(arg.value) == "nccl"


def _drop(plan: Plan, call: cst.Call, arg: cst.Arg | None) -> None:
    """Takes `"nccl"` out of a call. Where other arguments follow by position, None takes its place."""
    if arg is None or text_of(arg.value) != "nccl":
        return
    if argument(call, 7, "pg_options") is not None:
        plan.leave(arg.value, "the options may be NCCL's own: take out both, or neither")
        return
    following = call.args[call.args.index(arg) + 1 :]
    if arg.keyword is None and any(other.keyword is None or other.star for other in following):
        plan.replace(arg.value, "None")
    else:
        plan.handle(arg.value)
        remove(plan, call, arg)


def _convert_call(plan: Plan, call: cst.Call) -> None:
    """Changes `backend="nccl"` of other functions, and the default of an option of the command line."""
    name = plan.names.full_name(call.func) or ""
    if name.startswith("torch.distributed."):
        if not _INIT.fullmatch(name):
            return
        value = argument(call, 0, "backend")
        if value is not None:
            _convert_value(plan, value.value)
    elif isinstance(call.func, cst.Attribute) and call.func.attr.value in OPTION_FUNCTIONS:
        if any(_BACKEND_OPTION.fullmatch(text_of(arg.value) or "") for arg in call.args if not arg.keyword):
            for keyword in ("default", "choices"):
                option = argument(call, None, keyword)
                if option is not None:
                    _convert_value(plan, option.value)
    else:
        for arg in call.args:
            if arg.keyword is not None and _BACKEND_NAME.fullmatch(arg.keyword.value):
                _convert_value(plan, arg.value)


def _convert_variable(plan: Plan, node: cst.CSTNode) -> None:
    """Changes "nccl" where it is assigned to a name that says `backend`."""
    if isinstance(node, cst.Assign):
        targets: list[cst.CSTNode] = [target.target for target in node.targets]
        value: cst.BaseExpression | None = node.value
    elif isinstance(node, cst.AnnAssign):
        targets, value = [node.target], node.value
    elif isinstance(node, cst.Param):
        targets, value = [node.name], node.default
    elif isinstance(node, cst.DictElement):
        targets, value = [], node.value if _BACKEND_NAME.fullmatch(text_of(node.key) or "") else None
        targets = [node.key] if value is not None else []
    else:
        return
    if value is not None and any(_is_backend(target) for target in targets):
        _convert_value(plan, value)


def _is_backend(target: cst.CSTNode) -> bool:
    if isinstance(target, cst.Attribute):
        target = target.attr
    name = target.value if isinstance(target, cst.Name) else text_of(target)
    return _BACKEND_NAME.fullmatch(name or "") is not None


def _convert_value(plan: Plan, node: cst.BaseExpression) -> None:
    """Replaces "nccl" by the default backend of the accelerator, which is "nccl" on CUDA."""
    if isinstance(node, cst.IfExp):
        _convert_value(plan, node.body)
        _convert_value(plan, node.orelse)
    elif isinstance(node, cst.BooleanOperation):
        _convert_value(plan, node.left)
        _convert_value(plan, node.right)
    elif isinstance(node, (cst.List, cst.Tuple, cst.Set)):
        for element in node.elements:
            _convert_value(plan, element.value)
    elif text_of(node) == "nccl" and not plan.is_handled(node):
        # Before Python 3.12 an f-string cannot hold its own quotes.
        if any(isinstance(above, cst.FormattedString) for above in plan.source.ancestors(node)):
            return
        function = plan.torch(node, "distributed.get_default_backend_for_device")
        accelerator = plan.torch(node, "accelerator.current_accelerator()")
        if function is not None:
            plan.replace(node, f'{function}({accelerator} or "cpu")')
