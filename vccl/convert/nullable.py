"""Finds out which values a script takes to be None at times: `.cuda(None)` moves, `.to(None)` does not."""

from __future__ import annotations

import re

import libcst as cst

from vccl.convert.arguments import argument
from vccl.convert.source import Source


class Nullable:
    """The names and attributes of a script that may be None."""

    def __init__(self, source: Source, nodes: list[cst.CSTNode]) -> None:
        self._source = source
        self._written: set[str] = set()  # as the script spells them
        self._options: set[str] = set()  # of the command line
        for node in nodes:
            if isinstance(node, cst.Comparison):
                if any(source.code(part.comparator) == "None" for part in node.comparisons):
                    self._written.add(source.code(node.left))
            elif isinstance(node, cst.Param):
                if node.default is not None and source.code(node.default) == "None":
                    self._written.add(node.name.value)
            elif isinstance(node, cst.Assign) and source.code(node.value) == "None":
                self._written |= {source.code(target.target) for target in node.targets}
            elif isinstance(node, cst.Call) and source.code(node.func).endswith("add_argument"):
                self._add_option(node)

    def _add_option(self, call: cst.Call) -> None:
        default, required = argument(call, None, "default"), argument(call, None, "required")
        if (default is not None and self._source.code(default.value) != "None") or required is not None:
            return
        for arg in call.args:
            option = re.fullmatch(r"""['"]--([\w-]+)['"]""", self._source.code(arg.value))
            if arg.keyword is None and option:
                self._options.add(option[1].replace("-", "_"))

    def may_be_none(self, value: cst.BaseExpression) -> bool:
        attribute = value.attr.value if isinstance(value, cst.Attribute) else ""
        known = self._source.code(value) in self._written or attribute in self._options
        return known and not self._is_excluded(value)

    def _is_excluded(self, value: cst.BaseExpression) -> bool:
        """Returns whether a value stands under `if value is not None:`."""
        test = re.compile(rf"(?:.*\band )?{re.escape(self._source.code(value))} is not None(?: and\b.*)?")
        inside: cst.CSTNode = value
        for above in self._source.ancestors(value):
            if isinstance(above, (cst.FunctionDef, cst.Lambda)):
                return False
            if isinstance(above, (cst.If, cst.IfExp)) and inside is above.body:
                condition = self._source.code(above.test)
                if test.fullmatch(condition) and not re.search(r"\bor\b|\bif\b", condition):
                    return True
            inside = above
        return False

    def is_plain(self, value: cst.BaseExpression) -> bool:
        """Returns whether a value can be written twice: it is a name, or an attribute of one."""
        while isinstance(value, cst.Attribute):
            value = value.value
        return isinstance(value, cst.Name)
