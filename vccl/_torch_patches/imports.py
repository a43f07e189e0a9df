"""Runs a function when a module has been imported, without importing the module."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


def after(name: str, action: Callable[[], None]) -> None:
    """Calls `action` as soon as the module `name` has been imported, or at once if it is imported.

    Several actions for one module are called in the order of the calls of this function.
    """
    if name in sys.modules:
        action()
        return
    for finder in sys.meta_path:
        if isinstance(finder, _Finder) and finder.name == name:
            finder.actions.append(action)
            return
    sys.meta_path.insert(0, _Finder(name, action))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as Python's own finder does, and has actions called once the module has run."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self.name = name
        self.actions = [action]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            # The import may have failed before and be tried again. The actions run once.
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                for action in self.actions:
                    action()

        spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec
