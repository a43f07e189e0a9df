"""Converts the text of one script."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass

import libcst as cst

from vccl.convert import advice, backends, devices, imports, leftovers, methods, torch_cuda
from vccl.convert.plan import Leftover, Plan
from vccl.convert.source import Source

# A script without any of these has nothing to change or to report, and need not be looked at closely.
_MENTIONS = re.compile("|".join(["cuda", "cudnn", "nccl", *map(re.escape, advice.MODULES)]), re.IGNORECASE)


@dataclass(frozen=True)
class Conversion:
    """The text of a script after the conversion, and what was left."""

    text: str
    leftovers: list[Leftover]


def convert_text(text: str, is_package: bool = False) -> Conversion:
    """Returns the converted text. `is_package` says that it is an `__init__.py`.

    Raises:
        SyntaxError: the text is no Python, as LibCST says.
        RuntimeError: the result would be no Python, which is a mistake of this package.
    """
    try:
        module = cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        raise SyntaxError(f"line {error.raw_line}: {error.message}") from None
    if not _MENTIONS.search(text):
        return Conversion(text, [])
    plan = Plan(Source(text, module))
    nodes = list(plan.source.walk())
    devices.convert(plan, nodes)
    backends.convert(plan, nodes)
    methods.convert(plan, nodes)
    torch_cuda.convert(plan, nodes)
    imports.convert(plan, nodes, is_package)
    leftovers.report(plan, nodes)
    changed = plan.changed_text()
    if changed != text and not _is_python(changed, like=text):
        raise RuntimeError("the result would be no Python")
    return Conversion(changed, sorted(plan.leftovers))


def _is_python(text: str, like: str) -> bool:
    """Returns whether LibCST can read a text, and this Python too if it can read the text `like`."""
    try:
        cst.parse_module(text)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(like)
    except cst.ParserSyntaxError:
        return False
    except (SyntaxError, ValueError):
        return True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError:
        return False
    return True
