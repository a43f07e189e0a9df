"""Imports every module of vccl with a stand-in for torch, and so with any Python that lies about.

Run as a script: python3.14 tests/project/import_without_torch.py. It needs nothing but that Python. Each
module is compiled and its top runs, with classes, decorators and default values. What a Python does not have
in its syntax, or at the top of a module, is found. `ruff` and its target-version look after the rest.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Not part of Python, and needed by modules that nobody imports without them.
STANDS_IN_FOR = {
    *("_pytest", "accelerate", "coverage", "deepspeed", "expecttest", "libcst", "lightning", "matplotlib"),
    *("msgpack", "numpy", "pytest", "pytorch_lightning", "ray", "torch", "torchft", "tqdm", "transformers"),
    *("triton", "typing_extensions", "xdist", "zmq"),
}
# They act at once on what torch says, and have stand-ins themselves.
NEED_TORCH = {
    *("vccl._C", "vccl._inductor.card_interface", "vccl.integrations.deepspeed"),
    *("vccl.vdev.higher_order_operators", "vccl.vdev.legacy_types"),
}


class Anything:
    """Has every attribute, can be called, and gives back what it decorates. A class that is derived from it
    does without."""

    def __mro_entries__(self, bases):
        return ()

    def __getattr__(self, name):
        if name.startswith("__") and name not in ("__dlpack__", "__cuda_array_interface__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *arguments, **_):
        if len(arguments) == 1 and isinstance(arguments[0], types.FunctionType | type):
            return arguments[0]
        return self

    def __iter__(self):
        return iter(())

    def __len__(self):
        return 0

    def __getitem__(self, _):
        return self

    def __contains__(self, _):
        return False

    def __or__(self, _):
        return self

    __ror__ = __or__

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class StandIn(types.ModuleType):
    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []
        self.__file__ = "a stand-in"
        self.__version__ = "2.13.0"

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in STANDS_IN_FOR or name in NEED_TORCH:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def modules() -> list[str]:
    found = []
    for package in ("vccl", "vccl_entry"):
        for file in sorted((ROOT / package).rglob("*.py")):
            found.append(".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    # rglob does not follow the link of vccl/launch in every Python.
    found += [
        f"vccl.launch.{file.stem}" for file in (ROOT / "launch").glob("*.py") if file.stem != "__init__"
    ]
    return sorted({name for name in found if not name.endswith("__main__")})


def main() -> int:
    sys.path.insert(0, str(ROOT))
    sys.meta_path.insert(0, Finder())
    # The package's own __init__ loads the library, so its modules are imported without it.
    package = types.ModuleType("vccl")
    package.__path__ = [str(ROOT / "vccl")]
    package.__version__ = "0"
    sys.modules["vccl"] = package
    importlib.import_module("vccl._device_type").device_type = lambda: "vdev"
    failures = []
    names = [name for name in modules() if name != "vccl" and name not in NEED_TORCH]
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")
    compile((ROOT / "vccl" / "__init__.py").read_text(), "vccl/__init__.py", "exec")
    print(*failures, sep="\n")
    print(
        f"Python {sys.version.split()[0]}: {len(names) - len(failures)} modules imported, {len(failures)} not"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
