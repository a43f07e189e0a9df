"""Makes classes of torch anew over base classes that torch did not have at its import."""

import importlib
import sys
from collections.abc import Iterable
from types import ModuleType


def remake(name: str, classes: Iterable[str]) -> ModuleType:
    """Runs the module ``name`` again, and gives its new ``classes`` to all modules of torch that had the old.

    torch made these classes at its import, over empty base classes whose objects can do nothing. ``classes``
    may also name functions of the module.
    """
    remade = sys.modules[name]
    before = {each: getattr(remade, each) for each in classes}
    importlib.reload(remade)
    for module in [module for name, module in sys.modules.items() if name.startswith("torch")]:
        for each, old in before.items():
            if vars(module).get(each) is old:
                setattr(module, each, getattr(remade, each))
    return remade
