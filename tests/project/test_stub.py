"""Compares vccl/_C.pyi, which type checkers read, with the compiled module that it describes."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from vccl import _C
from vccl._torch_patches.signatures import parameters_of

STUB = Path(__file__).resolve().parents[2] / "vccl" / "_C.pyi"
# What every module or bound class has.
ALWAYS = {"__init__", "__repr__", "_pybind11_conduit_v1_"}


def declared(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Returns the statements that declare a name, by the name."""
    found = {}
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            found[statement.name] = statement
        elif isinstance(statement, ast.AnnAssign):
            found[statement.target.id] = statement
    return found


def pairs(owner: object, body: list[ast.stmt], path: str) -> Iterator[tuple[str, object, ast.stmt]]:
    """Yields (name, value, declaration) for all that a stub declares and that exists."""
    for name, statement in declared(body).items():
        if hasattr(owner, name):
            value = inspect.getattr_static(owner, name)
            yield f"{path}.{name}", value, statement
            if isinstance(statement, ast.ClassDef):
                yield from pairs(value, statement.body, f"{path}.{name}")


MODULE = ast.parse(STUB.read_text())
FOUND = {name: (value, statement) for name, value, statement in pairs(_C, MODULE.body, "_C")}
CLASSES = {name: found for name, found in FOUND.items() if isinstance(found[1], ast.ClassDef)}
FUNCTIONS = {
    name: found
    for name, found in FOUND.items()
    if isinstance(found[1], ast.FunctionDef) and not found[1].decorator_list
}


def test_the_stub_has_the_names_of_the_module():
    names = {name for name in vars(_C) if not name.startswith("__")}
    assert set(declared(MODULE.body)) == names


@pytest.mark.parametrize("name", CLASSES)
def test_the_stub_has_the_names_of_a_class(name):
    """A stub may also declare what the class inherits, where torch's own stub leaves it out."""
    kind, statement = CLASSES[name]
    own = {name for name in vars(kind) if name not in ("__doc__", "__module__")}
    names = set(declared(statement.body))
    assert own - ALWAYS <= names
    assert not {name for name in names if not hasattr(kind, name)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_what_the_stub_says(name):
    function, statement = FUNCTIONS[name]
    arguments = statement.args
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
    names = [
        *(f"arg{index}" for index in range(len(arguments.posonlyargs))),
        *(a.arg if d is None else f"{a.arg}=..." for a, d in zip(arguments.args, defaults, strict=True)),
    ]
    assert not arguments.kwonlyargs
    assert parameters_of(function) == f"({', '.join(names)})"


@pytest.mark.parametrize(
    "name", [name for name, found in FOUND.items() if not isinstance(found[1], ast.AnnAssign)]
)
def test_the_stub_describes_everything(name):
    if name.rpartition(".")[2] not in ("__init__", "__copy__", "__deepcopy__"):
        assert ast.get_docstring(FOUND[name][1])
