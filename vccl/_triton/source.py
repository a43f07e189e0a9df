"""Makes Python functions of the source of kernels, which run them with numpy.

A kernel's source is Python, and nearly all of it means the same to Python. What does not is rewritten here.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, cast

import triton.language as tl
from triton.runtime.jit import JITFunction

from vccl._triton import language


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _later(value: ast.expr) -> ast.Lambda:
    nothing = ast.arguments([], [], None, [], [], None, [])
    return ast.Lambda(nothing, value)


class _Rewriter(ast.NodeTransformer):
    """Rewrites what Python does differently from Triton."""

    def __init__(self, with_attributes: set[str]) -> None:
        self._with_attributes = with_attributes

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        # A number whose type a kernel asks for is a tensor in Triton, where a loop changes it.
        targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if any(target in self._with_attributes for target in targets):
            node.value = _call("__vccl_tensor", node.value)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        name = "__vccl_and" if isinstance(node.op, ast.And) else "__vccl_or"
        value = node.values[0]
        for following in node.values[1:]:
            value = _call(name, value, _later(following))
        return value

    def _visit_test(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        node.test = _call("__vccl_true", node.test)
        return cast(ast.AST, node)

    visit_If = visit_While = visit_IfExp = _visit_test

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return _call("__vccl_not", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) > 1:
            raise NotImplementedError("simultaneous multiple comparison is not supported in a kernel")
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        self.generic_visit(node)
        message = node.msg or ast.Constant("")
        return ast.Expr(_call("__vccl_assert", node.test, message))

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load) and node.attr == "value":
            return _call("__vccl_value", node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        # These methods of tensors are kernels' functions, such as x.sum(), which Python does not bind.
        if isinstance(node.func, ast.Attribute) and node.func.attr in language.methods_in_triton():
            node.func = _call("__vccl_method", node.func.value, ast.Constant(node.func.attr))
        return node


def _and(left: Any, right: Callable[[], Any]) -> Any:
    if language.is_tensor(left):
        return left.logical_and(right())
    return right() if left else left


def _or(left: Any, right: Callable[[], Any]) -> Any:
    if language.is_tensor(left):
        return left.logical_or(right())
    return left if left else right()


def _true(value: Any) -> bool:
    if language.is_tensor(value) and value.type.is_block():
        raise ValueError("a condition is a block of several elements, neither true nor false as a whole")
    return bool(value)


def _not(value: Any) -> Any:
    return value.__not__() if language.is_tensor(value) else not value


def _value(value: Any) -> Any:
    return getattr(value, "value", value)


def _bound_method(owner: Any, name: str) -> Any:
    if language.is_tensor(owner):
        return functools.partial(device_function(getattr(tl.tensor, name)), owner)
    return getattr(owner, name)


def _assert(condition: Any, message: Any) -> None:
    language.builtin(tl.device_assert)(language.to_tensor(condition), message)


_HELPERS = {
    "__vccl_tensor": language.to_tensor,
    "__vccl_and": _and,
    "__vccl_or": _or,
    "__vccl_not": _not,
    "__vccl_true": _true,
    "__vccl_assert": _assert,
    "__vccl_value": _value,
    "__vccl_method": _bound_method,
    "__builtins__": builtins,
}


class Names(dict[str, Any]):
    """The global names of a kernel's code. They are looked up when they are used, as Python does."""

    def __init__(self, function: FunctionType) -> None:
        super().__init__(_HELPERS)
        self._globals = function.__globals__
        cells = function.__closure__ or ()
        self._cells = dict(zip(function.__code__.co_freevars, cells, strict=True))
        self._builtins = language.builtin_names()

    def __missing__(self, name: str) -> Any:
        if name in self._cells:
            return language.meaning(self._cells[name].cell_contents)
        if name in self._globals:
            return language.meaning(self._globals[name])
        return self._builtins[name]


def _compiled(jit: JITFunction, first_line: int) -> CodeType:
    tree = ast.parse(jit.src)
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    attributes = {
        node.value.id
        for node in ast.walk(definition)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    # Defaults and annotations belong to the place of the definition. Calls fill in the defaults.
    every = (*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs)
    for argument in every:
        argument.annotation = None
    definition.args.defaults, definition.returns, definition.decorator_list = [], None, []
    definition.args.kw_defaults = [None] * len(definition.args.kwonlyargs)
    definition = _Rewriter(attributes - {argument.arg for argument in every}).visit(definition)
    ast.fix_missing_locations(tree)
    ast.increment_lineno(tree, first_line - 1)
    module = compile(tree, jit.fn.__code__.co_filename, "exec")
    return next(constant for constant in module.co_consts if isinstance(constant, CodeType))


def first_line_of(jit: JITFunction) -> int:
    """Returns the line of the file in which the kernel's `def` stands."""
    before = next((i for i, line in enumerate(jit.raw_src) if line.strip().startswith("def ")), 0)
    return int(jit.starting_line_number) + before


class DeviceFunction:
    """A kernel, or a function that kernels call, as a function of Python."""

    def __init__(self, jit: JITFunction) -> None:
        self.jit = jit
        self.source = jit.src
        self.__name__ = jit.fn.__name__
        self._signature = inspect.signature(jit.fn)
        code = _compiled(jit, first_line_of(jit))
        self._function = FunctionType(code, Names(jit.fn), jit.fn.__name__)
        defaults = {
            name: language.meaning(parameter.default)
            for name, parameter in self._signature.parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        self._defaults = defaults
        self._has_varargs = any(
            parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            for parameter in self._signature.parameters.values()
        )
        self._names = list(self._signature.parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for name in ("_semantic", "_generator"):
            kwargs.pop(name, None)
        if self._defaults:
            given = {*self._names[: len(args)], *kwargs}
            kwargs.update({name: value for name, value in self._defaults.items() if name not in given})
        return self._function(*args, **kwargs)


_functions: dict[int, tuple[JITFunction, DeviceFunction]] = {}


def device_function(jit: JITFunction) -> DeviceFunction:
    """Returns a function of Triton's as one of Python's. It is made anew if its source has changed."""
    known = _functions.get(id(jit))
    if known is None or known[0] is not jit or known[1].source != jit.src:
        known = (jit, DeviceFunction(jit))
        _functions[id(jit)] = known
    return known[1]


language.make_functions_by(device_function)
