"""Reads attributes of torch by name, and the parameters of functions as text."""

import ast
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any


def owner_of(attribute: str) -> tuple[Any, str]:
    """Returns the module or class that holds an attribute, and the attribute's last name.

    Args:
        attribute: the module and the name in it, as in ``"torch.distributed:ProcessGroup.rank"``.

    Raises:
        ImportError: the module does not exist.
        AttributeError: the module has no such class.
    """
    module, _, path = attribute.partition(":")
    *owners, name = path.split(".")
    # A chain of getattr() would take the function torch.distributed.rendezvous for the module of that name.
    return functools.reduce(getattr, owners, importlib.import_module(module)), name


def value_of(attribute: str) -> Any:
    """Returns the value of an attribute.

    Raises:
        ImportError: the module does not exist.
        AttributeError: the module has no such attribute.
    """
    owner, name = owner_of(attribute)
    return getattr(owner, name)


class _Default:
    """Stands for the default value of a parameter: which value that is does not matter."""

    def __repr__(self) -> str:
        return "..."


def parameters_of(function: Callable[..., Any]) -> str:
    """Returns the names and kinds of a function's parameters, as in ``"(group=..., *, tag=...)"``.

    Annotations are left out, and ``...`` stands for every default value.

    Raises:
        ValueError: neither the function nor its docstring tells its parameters.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:
        signature = _signature_in_docstring(function)
    plain = [
        parameter.replace(
            annotation=parameter.empty,
            default=parameter.empty if parameter.default is parameter.empty else _Default(),
        )
        for parameter in signature.parameters.values()
    ]
    return str(inspect.Signature(plain))


def _signature_in_docstring(function: Callable[..., Any]) -> inspect.Signature:
    """Reads the first line of the docstring, in which pybind11 writes ``name(parameters) -> type``.

    A type that pybind11 did not know yet has its name of C++ there: ``c10d::ProcessGroup``.
    """
    line = (inspect.getdoc(function) or "").partition("\n")[0].replace("::", ".")
    try:
        (definition,) = ast.parse(f"def {line}: ...").body
    except SyntaxError:
        raise ValueError(f"{function} does not tell its parameters") from None
    assert isinstance(definition, ast.FunctionDef)
    arguments = definition.args
    first_default = len(arguments.args) - len(arguments.defaults)
    return inspect.Signature(
        [
            inspect.Parameter(
                argument.arg,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=inspect.Parameter.empty if index < first_default else _Default(),
            )
            for index, argument in enumerate(arguments.args)
        ]
    )
