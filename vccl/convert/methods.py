"""Changes `.cuda()` and `.is_cuda`, whatever they are asked of."""

from __future__ import annotations

import re

import libcst as cst

from vccl.convert.arguments import add_keyword, argument, has_star, prepend
from vccl.convert.nullable import Nullable
from vccl.convert.plan import Plan

# Objects with these names hold a script's own settings.
_SETTINGS = re.compile(r"args?|opts?|options?|flags|c(?:on)?fi?g|conf|hparams|params|self|cls", re.IGNORECASE)
# Calls that give a device for sure, and never None.
_DEVICE_CALLS = re.compile(r"(?:.*\.)?(?:int|device|get_rank|current_device|current_device_index|get_device)")
# Where `a == b` can stand without parentheses.
_NEEDS_NO_PARENTHESES = (
    cst.Arg,
    cst.Assert,
    cst.Assign,
    cst.AnnAssign,
    cst.BooleanOperation,
    cst.CompIf,
    cst.Expr,
    cst.If,
    cst.IfExp,
    cst.Return,
    cst.While,
    cst.Element,
    cst.DictElement,
)


def convert(plan: Plan, nodes: list[cst.CSTNode]) -> None:
    nullable = Nullable(plan.source, nodes)
    own_method = any(isinstance(node, cst.FunctionDef) and node.name.value == "cuda" for node in nodes)
    own_property = _has_own_is_cuda(nodes)
    for node in nodes:
        if (
            isinstance(node, cst.Call)
            and isinstance(node.func, cst.Attribute)
            and node.func.attr.value == "cuda"
        ):
            if plan.names.meanings(node.func) <= {None}:
                _convert_cuda(plan, node, node.func, nullable, own_method)
            else:
                _convert_imported(plan, node, node.func, nullable, own_method)
        elif isinstance(node, cst.Attribute) and node.attr.value == "is_cuda":
            _convert_is_cuda(plan, node, own_property)


def _convert_imported(
    plan: Plan, call: cst.Call, method: cst.Attribute, nullable: Nullable, own_method: bool
) -> None:
    """Takes `module.net.cuda()` for a method, but not `module.cuda()`, nor torch's own functions."""
    names = {name or "" for name in plan.names.meanings(method)}
    if any(f"{name}.".startswith(("torch.cuda.", "torch.Tensor.", "torch.nn.Module.")) for name in names):
        return
    if isinstance(method.value, cst.Name):
        plan.leave(call, "this may be a function of a module: write .to(device) if it moves something")
    else:
        _convert_cuda(plan, call, method, nullable, own_method)


def _convert_cuda(
    plan: Plan, call: cst.Call, method: cst.Attribute, nullable: Nullable, own_method: bool
) -> None:
    """Makes `.cuda(...)` a `.to(device, ...)`."""
    device = argument(call, 0, "device")
    if own_method:
        plan.leave(call, "the script defines a method cuda() of its own: write .to(device) if this is not it")
    elif _is_of_storage(plan, call, method):
        plan.leave(call, "a storage's .to() takes other arguments: use map_location=device, or a tensor")
    elif has_star(call):
        plan.leave(call, "it is not known which arguments there are: write .to(device, ...)")
    elif device is None or plan.source.code(device.value) == "None":
        _move_to_accelerator(plan, call, method, device)
    elif isinstance(device.value, cst.Call) and not _DEVICE_CALLS.fullmatch(
        plan.source.code(device.value.func)
    ):
        plan.leave(call, "the argument may be None, which .to() understands otherwise: write .to(device)")
    elif not nullable.may_be_none(device.value):
        _rename(plan, call, method)
    elif not nullable.is_plain(device.value):
        plan.leave(call, "the argument may be None, which .to() understands otherwise: write .to(device)")
    else:
        accelerator = plan.torch(call, "accelerator.current_accelerator()")
        if accelerator is not None:
            value = plan.source.code(device.value)
            plan.insert(plan.source.span(device.value)[0], f"{accelerator} if {value} is None else ")
            _rename(plan, call, method)


def _is_of_storage(plan: Plan, call: cst.Call, method: cst.Attribute) -> bool:
    """Returns whether the method is a storage's, as in `map_location=lambda s, location: s.cuda(rank)`."""
    if re.search(r"storage(?:\(\))?$", plan.source.code(method.value), re.IGNORECASE):
        return True
    function = next((above for above in plan.source.ancestors(call) if isinstance(above, cst.Lambda)), None)
    arg = plan.source.parent(function) if function is not None else None
    loading = plan.source.parent(arg) if arg is not None else None
    if not isinstance(arg, cst.Arg) or not isinstance(loading, cst.Call):
        return False
    named = arg.keyword is not None and arg.keyword.value == "map_location"
    return named or plan.names.full_name(loading.func) in ("torch.load", "torch.jit.load")


def _move_to_accelerator(plan: Plan, call: cst.Call, method: cst.Attribute, device: cst.Arg | None) -> None:
    accelerator = plan.torch(call, "accelerator.current_accelerator()")
    if accelerator is None:
        return
    if device is None:
        prepend(plan, call, accelerator)
    else:
        plan.replace(device.value, accelerator)
    _rename(plan, call, method)


def _rename(plan: Plan, call: cst.Call, method: cst.Attribute) -> None:
    """Makes the method `.to`, whose second position is the dtype and not `non_blocking`."""
    plan.replace(method.attr, "to")
    if len(call.args) > 1 and call.args[1].keyword is None:
        add_keyword(plan, call.args[1], "non_blocking")


def _has_own_is_cuda(nodes: list[cst.CSTNode]) -> bool:
    """Returns whether the script defines or sets an `is_cuda` itself."""
    for node in nodes:
        if isinstance(node, cst.FunctionDef) and node.name.value == "is_cuda":
            return True
        target = node.target if isinstance(node, (cst.AssignTarget, cst.AnnAssign)) else None
        if isinstance(target, cst.Attribute) and target.attr.value == "is_cuda":
            return True
    return False


def _convert_is_cuda(plan: Plan, node: cst.Attribute, own_property: bool) -> None:
    """Compares the type of x's device instead of `x.is_cuda`. Without an accelerator that is False."""
    owner = node.value.attr if isinstance(node.value, cst.Attribute) else node.value
    settings = isinstance(owner, cst.Name) and _SETTINGS.fullmatch(owner.value)
    if own_property or settings:
        plan.leave(
            node, "this may not be a tensor's: if it is, compare its device.type with the accelerator's"
        )
        return
    accelerator = plan.torch(node, "accelerator.current_accelerator()")
    if accelerator is None:
        return
    plan.replace(node.attr, f"device.type == str({accelerator})")
    plan.handle(node)
    parent = plan.source.parent(node)
    negated = isinstance(parent, cst.UnaryOperation) and isinstance(parent.operator, cst.Not)
    if not (node.lpar or negated or isinstance(parent, _NEEDS_NO_PARENTHESES)):
        start, end = plan.source.span(node)
        plan.insert(start, "(")
        plan.insert(end, ")")
