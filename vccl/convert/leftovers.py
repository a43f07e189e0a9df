"""Reports what names CUDA or NCCL and was not changed."""

from __future__ import annotations

import libcst as cst

from vccl.convert import advice
from vccl.convert.plan import Plan
from vccl.convert.strings import starts_with_cuda, text_of


def report(plan: Plan, nodes: list[cst.CSTNode]) -> None:
    for node in nodes:
        if plan.is_handled(node):
            continue
        if isinstance(node, (cst.Import, cst.ImportFrom)):
            _report_import(plan, node)
        elif isinstance(node, (cst.Attribute, cst.Name)):
            _report_name(plan, node)
        elif isinstance(node, cst.SimpleString):
            _report_string(plan, node)
        elif isinstance(node, cst.FormattedString) and starts_with_cuda(node):
            plan.leave(node, advice.about_string("cuda:"))


def _report_import(plan: Plan, node: cst.Import | cst.ImportFrom) -> None:
    if isinstance(node, cst.ImportFrom):
        if node.module is None or node.relative:
            return
        modules = [plan.source.code(node.module)]
        if isinstance(node.names, cst.ImportStar):
            if modules[0].startswith("torch.cuda") or modules[0] == "torch.distributed":
                plan.leave(node, "the names that this brings are not known here: import them one by one")
                return
        else:
            modules += [f"{modules[0]}.{plan.source.code(alias.name)}" for alias in node.names]
    else:
        modules = [plan.source.code(alias.name) for alias in node.names]
    for module in modules:
        text = advice.about_module(module)
        if text:
            plan.leave(node, text)
            return


def _report_name(plan: Plan, node: cst.Name | cst.Attribute) -> None:
    parent = plan.source.parent(node)
    if isinstance(parent, (cst.Attribute, cst.ImportAlias, cst.ImportFrom, cst.AsName)):
        return
    if isinstance(parent, (cst.Arg, cst.Param)) and parent.children[0] is node and _is_label(parent):
        return
    name = plan.names.full_name(node) or ""
    if name.startswith("torch.") and not name.startswith("torch.cuda"):
        text = advice.about_name(name)
        if text:
            plan.leave(node, text)


def _is_label(node: cst.Arg | cst.Param) -> bool:
    return isinstance(node, cst.Param) or node.keyword is not None


def _report_string(plan: Plan, node: cst.SimpleString) -> None:
    parents = (plan.source.parent(node), *plan.source.ancestors(node))
    if isinstance(parents[0], (cst.Expr, cst.ConcatenatedString)):
        return
    text = advice.about_string(text_of(node) or "")
    if text:
        plan.leave(node, text)
