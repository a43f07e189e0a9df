"""Finds out which tensors a kernel may write, from its source.

The answer errs to one side only: a parameter that is not among the answer is written by no program.
"""

from __future__ import annotations

import ast
import functools
from typing import Any

from triton.runtime.jit import JITFunction

_WRITES = {"store", "scatter", "store_tensor_descriptor", "inline_asm_elementwise"}
_WRITES |= {f"atomic_{name}" for name in ("add", "and", "cas", "max", "min", "or", "xchg", "xor")}
# Names of functions that compute, whose results are no pointers although their arguments may be.
_LOADS = {"load", "load_tensor_descriptor", "gather", "numel", "cdiv", "arange", "program_id", "num_programs"}


def written_parameters(jit: JITFunction) -> frozenset[str]:
    """Returns the names of the parameters that may point to memory which the kernel writes."""
    return _written(jit, jit.src, frozenset())


def _written(jit: JITFunction, source: str, under_way: frozenset[JITFunction]) -> frozenset[str]:
    analysis = _Analysis(jit, under_way | {jit})
    analysis.visit(ast.parse(source).body[0])
    return analysis.written()


@functools.cache
def _written_of_function(jit: JITFunction, source: str) -> frozenset[str]:
    return _written(jit, source, frozenset())


class _Analysis(ast.NodeVisitor):
    """Collects from which names each name is made, and which names are written through."""

    def __init__(self, jit: JITFunction, under_way: frozenset[JITFunction]) -> None:
        self._jit = jit
        self._under_way = under_way
        self._sources: dict[str, set[str]] = {}
        self._written: set[str] = set()
        self._parameters = list(jit.arg_names)

    def written(self) -> frozenset[str]:
        """Returns the parameters that lead to what is written."""
        reached, left = set(self._written), list(self._written)
        while left:
            for source in self._sources.get(left.pop(), ()):
                if source not in reached:
                    reached.add(source)
                    left.append(source)
        return frozenset(reached.intersection(self._parameters))

    def _assign(self, target: ast.AST, value: ast.AST) -> None:
        names = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
        for name in names:
            self._sources.setdefault(name, set()).update(_pointers_in(value))

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assign(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._assign(node.target, node.value)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._assign(node.target, node.iter)
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._assign(node.target, node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        every = [*node.args, *(keyword.value for keyword in node.keywords)]
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in _WRITES:
            # The pointer is the first argument, or the descriptor that the method belongs to.
            owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            pointers = [keyword.value for keyword in node.keywords if keyword.arg in ("pointer", "desc")]
            self._write(*owner, *(node.args[:1] or pointers or every))
            return
        called = self._resolve(node.func)
        if called is None:
            # A function that is an argument, or no function of Triton's language, may write what it is given.
            if not _is_of_the_language(node.func, self._jit) and name not in _LOADS:
                self._write(*every)
            return
        if called in self._under_way:
            self._write(*every)
            return
        written = _written_of_function(called, called.src)
        given = dict(zip(called.arg_names, node.args, strict=False))
        given.update({keyword.arg: keyword.value for keyword in node.keywords if keyword.arg})
        self._write(*(value for parameter, value in given.items() if parameter in written))
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            self._write(*every)

    def _write(self, *values: ast.AST) -> None:
        for value in values:
            self._written.update(_pointers_in(value))

    def _resolve(self, function: ast.expr) -> JITFunction | None:
        value = _value_of(function, self._jit)
        return value if isinstance(value, JITFunction) else None


def _value_of(node: ast.expr, jit: JITFunction) -> Any:
    if isinstance(node, ast.Name):
        return jit.get_capture_scope().get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _value_of(node.value, jit)
        return getattr(owner, node.attr, None) if owner is not None else None
    return None


def _is_of_the_language(function: ast.expr, jit: JITFunction) -> bool:
    value = _value_of(function, jit)
    if value is None:
        # Python's own functions, and methods of tensors, which write by the names above alone.
        return isinstance(function, ast.Attribute) or getattr(function, "id", "") in _PYTHON
    return str(getattr(value, "__module__", "")).startswith("triton.")


_PYTHON = {"range", "len", "min", "max", "float", "int", "print", "abs", "isinstance", "tuple", "list"}


def _pointers_in(value: ast.AST) -> set[str]:
    """Returns the names that a pointer may come from, which is none in the arguments of a load."""
    if isinstance(value, ast.Call):
        name = getattr(value.func, "attr", getattr(value.func, "id", ""))
        if name in _LOADS:
            return set()
    if isinstance(value, ast.Name):
        return {value.id}
    return set().union(*(_pointers_in(child) for child in ast.iter_child_nodes(value)), set())
