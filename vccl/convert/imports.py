"""Adds `import torch` where a change needs it, and takes out imports that nothing uses any more."""

from __future__ import annotations

import re

import libcst as cst
from libcst.metadata import ImportAssignment

from vccl.convert.names import chain
from vccl.convert.plan import Plan

_Import = cst.Import | cst.ImportFrom


def convert(plan: Plan, nodes: list[cst.CSTNode], is_package: bool) -> None:
    """Comes last, because it asks which names were changed. An `__init__.py` keeps its imports for others."""
    replaced = False
    exported = _exported(plan, nodes)
    for node in nodes:
        if not isinstance(node, (cst.Import, cst.ImportFrom)) or isinstance(node.names, cst.ImportStar):
            continue
        unused = (
            [] if is_package else [alias for alias in node.names if _is_unused(plan, node, alias, exported)]
        )
        if not unused:
            continue
        if len(unused) < len(node.names):
            _remove_some(plan, list(node.names), unused)
        elif plan.needs_torch and not replaced and _is_at_top(plan, node):
            plan.replace(node, "import torch")
            replaced = True
        else:
            _remove_line(plan, node)
    if plan.needs_torch and not replaced:
        _add_import(plan)


def _exported(plan: Plan, nodes: list[cst.CSTNode]) -> str:
    """Returns the text of `__all__`, or ""."""
    for node in nodes:
        if isinstance(node, cst.Assign) and plan.source.code(node.targets[0].target) == "__all__":
            return plan.source.code(node.value)
    return ""


def _is_unused(plan: Plan, node: _Import, alias: cst.ImportAlias, exported: str) -> bool:
    """Returns whether an import of torch.cuda had uses, and every one of them was changed."""
    bound = plan.source.code(alias.asname.name) if alias.asname else plan.source.code(alias.name)
    module = node.module if isinstance(node, cst.ImportFrom) else None
    full = plan.source.code(alias.name)
    full = f"{plan.source.code(module)}.{full}" if module is not None else full
    scope = plan.source.scope(node)
    if not f"{full}.".startswith("torch.cuda.") or "." in bound or scope is None or f'"{bound}"' in exported:
        return False
    uses: list[cst.CSTNode] = []
    for assignment in scope[bound]:
        if not isinstance(assignment, ImportAssignment) or assignment.node is not node:
            return False
        uses += [access.node for access in assignment.references]
    roots = [parts[0] for parts in map(chain, uses) if parts is not None]
    return bool(uses) and len(roots) == len(uses) and all(map(plan.was_changed, roots))


def _is_at_top(plan: Plan, node: _Import) -> bool:
    line = plan.source.parent(node)
    return line is not None and plan.source.parent(line) is plan.source.module


def _remove_some(plan: Plan, aliases: list[cst.ImportAlias], unused: list[cst.ImportAlias]) -> None:
    """Takes names out of an import that keeps others. With a comment among them, all stay."""
    spans = [plan.source.span(alias) for alias in aliases]
    if "#" in plan.source.text[spans[0][0] : spans[-1][1]]:
        return
    last_kept = max(index for index, alias in enumerate(aliases) if alias not in unused)
    for index, alias in enumerate(aliases):
        if alias not in unused:
            continue
        if index < last_kept:  # the comma behind it goes, or else the one before it
            plan.replace_span(spans[index][0], spans[index + 1][0], "")
        else:
            plan.replace_span(spans[index - 1][1], spans[index][1], "")


def _remove_line(plan: Plan, node: _Import) -> None:
    """Takes a statement out with its line, unless a block would be empty or there is more on the line."""
    source = plan.source
    line = source.parent(node)
    block = source.parent(line) if isinstance(line, cst.SimpleStatementLine) else None
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return
    if not isinstance(block, (cst.Module, cst.IndentedBlock)) or len(block.body) < 2:
        return
    start, end = source.span(node)
    begin = max(source.text.rfind(mark, 0, start) for mark in "\r\n") + 1
    rest = re.compile(r"[ \t]*(\r\n?|\n|\Z)").match(source.text, end)
    if rest is not None and source.text[begin:start].strip() == "":
        plan.replace_span(begin, rest.end(), "")
    else:  # a comment stays
        blank = re.compile(r"[ \t]*").match(source.text, end)
        plan.replace_span(start, blank.end() if blank else end, "")


def _add_import(plan: Plan) -> None:
    """Adds `import torch` before the first import of something of torch, else after the docstring."""
    source, module = plan.source, plan.source.module
    place: cst.CSTNode | None = None
    for statement in module.body:
        first = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if isinstance(first, (cst.Import, cst.ImportFrom)) and re.match(
            r"(?:from|import)\s+torch\b", source.code(first)
        ):
            place = statement
            break
        future = isinstance(first, cst.ImportFrom) and "__future__" in source.code(first)
        docstring = isinstance(first, cst.Expr) and isinstance(
            first.value, (cst.SimpleString, cst.ConcatenatedString)
        )
        if place is None and not future and not docstring:
            place = statement
    if place is not None:
        plan.insert(source.span(place)[0], f"import torch{module.default_newline}")
