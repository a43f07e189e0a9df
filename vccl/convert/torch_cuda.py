"""Changes what is used of torch.cuda to what torch has for every accelerator."""

from __future__ import annotations

import re

import libcst as cst

from vccl.convert import advice
from vccl.convert.arguments import add_keyword, argument, drop_keyword, has_star, prepend
from vccl.convert.plan import Plan
from vccl.convert.targets import INT_DEVICE, TARGETS, Target, without_submodule

# Calls that return an int, whatever device they are about.
_INT_CALLS = {
    "int",
    "torch.cuda.current_device",
    "torch.accelerator.current_device_index",
    "torch.distributed.get_rank",
    "torch.distributed.get_node_local_rank",
}
# What has the handle of a CUDA stream or event. Streams and events of all devices have none.
_HANDLES = {"cuda_stream", "cuda_event", "ipc_handle", "from_ipc_handle"}
_STREAMS = {"Stream", "Event", "current_stream", "default_stream"}
_ABOUT_DEVICE = re.compile(r"cuda|gpu|accelerator", re.IGNORECASE)


def convert(plan: Plan, nodes: list[cst.CSTNode]) -> None:
    """Changes every use of torch.cuda that has a counterpart, and leaves the others with advice."""
    handles = any(isinstance(node, cst.Attribute) and node.attr.value in _HANDLES for node in nodes)
    for node in nodes:
        if not isinstance(node, (cst.Name, cst.Attribute)) or not _stands_alone(plan, node):
            continue
        full = plan.names.full_name(node)
        if full is not None and f"{full}.".startswith("torch.cuda."):
            _convert_use(plan, node, without_submodule(full.removeprefix("torch.cuda").lstrip(".")), handles)
        elif full is None:
            _report_if_ambiguous(plan, node)


def _stands_alone(plan: Plan, node: cst.CSTNode) -> bool:
    """Returns whether a name is used here: it is not a part of a longer one, nor of an import."""
    parent = plan.source.parent(node)
    if isinstance(parent, (cst.Attribute, cst.ImportAlias, cst.AsName, cst.ImportFrom, cst.AssignTarget)):
        return False
    if isinstance(parent, (cst.Arg, cst.Param, cst.FunctionDef, cst.ClassDef)):
        return getattr(parent, "keyword", None) is not node and getattr(parent, "name", None) is not node
    return True


def _report_if_ambiguous(plan: Plan, node: cst.CSTNode) -> None:
    for name in plan.names.meanings(node):
        if name is not None and name.startswith("torch.cuda"):
            plan.leave(node, f"it may be {name} or something else: the script binds the name more than once")


def _convert_use(plan: Plan, node: cst.Name | cst.Attribute, name: str, handles: bool) -> None:
    target = TARGETS.get(name)
    if target is None:
        plan.leave(node, advice.about_name(f"torch.cuda.{name}".rstrip(".")))
        return
    if name in _STREAMS and handles:
        plan.leave(node, "the script uses the CUDA handle of a stream or event, which others do not have")
        return
    if name == "is_available" and _guards_cuda_alone(plan, node):
        plan.leave(node, "it guards what CUDA alone has: change both together")
        return
    if "#" in plan.source.code(node):
        plan.leave(node, f"there is a comment inside: write torch.{target.path}")
        return
    parent = plan.source.parent(node)
    call = parent if isinstance(parent, cst.Call) and parent.func is node else None
    if call is not None:
        if name == "device" and _is_int(plan, argument(call, 0, "device")):
            target = INT_DEVICE
        reason = _why_not(call, target)
        if reason:
            plan.leave(call, reason)
            plan.handle(node)
            return
    elif target.device_type_first and not _is_class_here(plan, node):
        plan.leave(node, f"torch.{target.path} needs the device type as its first argument")
        return
    spelled = plan.torch(node, target.path)
    if spelled is None:
        return
    plan.replace(node, spelled)
    if call is not None:
        _convert_arguments(plan, call, target)
        if target.guarded:
            _guard(plan, call)


def _guards_cuda_alone(plan: Plan, node: cst.CSTNode) -> bool:
    """Returns whether the condition that a node belongs to uses something of torch.cuda that is left.

    `torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)` would raise on another device
    if its first half alone were changed.
    """
    condition = node
    for above in plan.source.ancestors(node):
        is_call = isinstance(above, cst.Call) and above.func is condition
        if not is_call and not isinstance(above, (cst.BooleanOperation, cst.UnaryOperation, cst.IfExp)):
            break
        condition = above
    waiting = [condition]
    while waiting:
        inner = waiting.pop()
        waiting.extend(inner.children)
        if isinstance(inner, (cst.Name, cst.Attribute)) and _stands_alone(plan, inner):
            full = plan.names.full_name(inner) or ""
            if (
                full.startswith("torch.cuda.")
                and without_submodule(full[len("torch.cuda.") :]) not in TARGETS
            ):
                return True
    return False


def _why_not(call: cst.Call, target: Target) -> str:
    """Returns why the arguments of a call cannot be converted, or ""."""
    rearranged = target.device_type_first or target.keywords or target.refused
    if rearranged and has_star(call):
        return f"it is not known which arguments there are: write torch.{target.path} by hand"
    for name in target.refused:
        if argument(call, len(target.keywords) or None, name):
            return f"torch.{target.path} has no parameter `{name}`"
    return ""


def _convert_arguments(plan: Plan, call: cst.Call, target: Target) -> None:
    if target.device_type_first:
        # `enabled` is a parameter of both, at another place than in torch.amp.
        position = 0 if target.keywords else 4
        device_type = type_of_accelerator(plan, call, position)
        if device_type is not None:
            prepend(plan, call, device_type)
    for name in target.no_keyword:
        arg = argument(call, None, name)
        if arg is not None:
            drop_keyword(plan, arg)
    for arg, name in zip(call.args, target.keywords, strict=False):
        if arg.keyword is None and name:
            add_keyword(plan, arg, name)


def type_of_accelerator(plan: Plan, call: cst.Call, enabled: int) -> str | None:
    """Returns what gives autocast or GradScaler the accelerator's type.

    A script that passes `enabled`, at this position or by keyword, may run without an accelerator too. That
    gives it "cpu" then.
    """
    accelerator = plan.torch(call, "accelerator.current_accelerator()")
    if accelerator is None:
        return None
    arg = argument(call, enabled, "enabled")
    if arg is None or plan.source.code(arg.value) == "True":
        return f"{accelerator}.type"
    return f'({accelerator} or {plan.torch(call, "device")}("cpu")).type'


def _is_int(plan: Plan, arg: cst.Arg | None) -> bool:
    """Returns whether an argument is an int for sure."""
    if arg is None or arg.star:
        return False
    if isinstance(arg.value, cst.Call):
        name = plan.names.full_name(arg.value.func) or plan.source.code(arg.value.func)
        return name in _INT_CALLS
    return isinstance(arg.value, cst.Integer)


def _is_class_here(plan: Plan, node: cst.CSTNode) -> bool:
    """Returns whether a name that is not called stands in an annotation or in isinstance()."""
    for above in plan.source.ancestors(node):
        if isinstance(above, cst.Annotation):
            return True
        if isinstance(above, cst.Call):
            return plan.source.code(above.func) == "isinstance"
        if isinstance(above, cst.BaseStatement):
            return False
    return False


def _guard(plan: Plan, call: cst.Call) -> None:
    """Puts a call that did nothing without CUDA under `if torch.accelerator.is_available():`.

    Only a line of its own is put there, and not where a condition about the device encloses it.
    """
    source = plan.source
    expression = source.parent(call)
    line = source.parent(expression) if isinstance(expression, cst.Expr) else None
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return
    inside: cst.CSTNode = line
    for above in source.ancestors(line):
        if (
            isinstance(above, cst.If)
            and inside is above.body
            and _ABOUT_DEVICE.search(source.code(above.test))
        ):
            return
        inside = above
    start = source.span(line)[0]
    begin = max(source.text.rfind(end, 0, start) for end in "\r\n") + 1
    indent = source.text[begin:start]
    test = plan.torch(call, "accelerator.is_available()")
    module = source.module
    if indent.strip() == "":
        plan.insert(start, f"if {test}:{module.default_newline}{indent}{module.default_indent}")
