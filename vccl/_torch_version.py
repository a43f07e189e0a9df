"""The versions and builds of torch that this package supports, checked before anything compiled is loaded.

Makefile and CMakeLists.txt read it here. tests/project/test_torch_version.py compares the other places that
name it.
"""

import operator
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

# An import of the package would make a circle: it imports this module.
_PACKAGE_PATH = sys.modules[__name__.rpartition(".")[0]].__path__

# The version that this package is developed with.
TESTED = "2.13.0"
# The releases that the package is compiled for and tested with, one of each minor version. Each minor version
# has a header in csrc_device/torch/versions.
RELEASES = ("2.12.1", "2.13.0", "2.14.1", "2.15.0")
# The minor version decides: torch's C++ classes change their layout from one to the next.
SUPPORTED = tuple(release.rpartition(".")[0] for release in RELEASES)


def _minor(version: str) -> tuple[int, int]:
    """Returns the first two numbers of a version, as (2, 13) for "2.13.0+cpu"."""
    major, minor, *_ = version.split("+")[0].split(".")
    return int(major), int(minor)


_COMPARISONS = {">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt}


def is_one_of(versions: str, found: str = torch.__version__) -> bool:
    """Returns whether the installed torch is one of ``versions``, which are given as in ``">=2.12, <2.15"``.

    Only minor versions are compared, because a patch release changes no interface.

    Raises:
        ValueError: ``versions`` is not of that form.
    """
    for part in versions.split(","):
        comparison = re.fullmatch(r"\s*(>=|<=|==|<|>)\s*(\d+\.\d+)\s*", part)
        if not comparison:
            raise ValueError(f'{versions!r} names no versions of torch: write ">=2.12, <2.15"')
        if not _COMPARISONS[comparison[1]](_minor(found), _minor(comparison[2])):
            return False
    return True


def renamed(module: ModuleType, name: str, older: str, since: str) -> Callable[..., Any]:
    """Returns the function ``name`` of torch, which had the name ``older`` before the versions ``since``.

    Torch keeps the older names for a while, and warns of them.
    """
    return getattr(module, name if is_one_of(since) else older)


def check() -> None:
    """Lets ``vccl._C`` be found that was compiled for the installed torch.

    The compiled module uses torch's C++ classes. Loaded into another minor version of torch, it fails with an
    unresolved symbol at best. So what is compiled lies in a folder for each version, and the folder of this
    one becomes part of the package's path.

    Raises:
        ImportError: vccl was not compiled for the installed torch. The text says what to do.
    """
    major, minor = _minor(torch.__version__)
    compiled = compiled_for()
    if folder := compiled.get(f"{major}.{minor}"):
        if str(folder) not in _PACKAGE_PATH:
            _PACKAGE_PATH.append(str(folder))
        return
    raise ImportError(
        f"vccl works with torch {_listed(compiled)} here, and found torch {torch.__version__}. Install a "
        f"matching pair (pip install 'torch=={max(compiled, key=_minor)}.*'), or uninstall vccl (pip "
        "uninstall vccl), or set TORCH_DEVICE_BACKEND_AUTOLOAD=0 to import torch without it."
        if compiled
        else "vccl is not compiled. Run `make install` in its sources, or install its wheel."
    )


def compiled_for() -> dict[str, Path]:
    """Returns the minor versions of torch that this installation was compiled for, with their folders."""
    found = {}
    for path in _PACKAGE_PATH:
        for folder in Path(path).glob("_torch_[0-9]*"):
            if (folder / "libvccl.so").exists():
                found[folder.name.removeprefix("_torch_").replace("_", ".")] = folder
    return dict(sorted(found.items(), key=lambda item: _minor(item[0])))


def _listed(versions: Iterable[str]) -> str:
    """Returns "2.12.x, 2.13.x or 2.14.x"."""
    *others, last = [f"{version}.x" for version in versions]
    return f"{', '.join(others)} or {last}" if others else last


class PoseRefused(RuntimeError):
    """The cards cannot pose as CUDA in this torch."""


def check_pose() -> None:
    """Raises PoseRefused if the cards are to pose as CUDA and torch was built with it.

    The compiled module reads VDEV_POSE when it is loaded, and registers kernels for CUDA. With torch's own
    kernels there, that is too late to refuse, so the variable is also read here.
    """
    built_with = "CUDA" if torch.version.cuda else "ROCm" if torch.version.hip else None
    if os.environ.get("VDEV_POSE", "").strip() == "cuda" and built_with:
        raise PoseRefused(
            f"VDEV_POSE=cuda: this torch ({torch.__version__}) was built with {built_with}, and cards cannot "
            "take the place of real GPUs. Unset VDEV_POSE and use the cards as vdev, or install "
            "torch's CPU build."
        )


def check_device() -> None:
    """Raises ImportError if another library has taken torch's one device for extensions (PrivateUse1)."""
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", "vdev"):
        raise ImportError(
            f"torch has room for one device of an extension, and in this process that is {taken}. Uninstall "
            f"vccl (pip uninstall vccl) or what brings {taken}; or set TORCH_DEVICE_BACKEND_AUTOLOAD=0, and "
            "import the one that the process needs."
        )
