"""The version of torch that this package supports, checked before anything compiled is loaded.

Makefile and CMakeLists.txt read it here. tests/test_torch_version.py compares the other places that name it.
"""

import torch

TESTED = "2.13.0"
# The minor version decides: torch's C++ classes change their layout from one to the next.
REQUIRED = ".".join(TESTED.split(".")[:2])


def check() -> None:
    """Raises ImportError, and says what to do, unless the installed torch is one that vccl is built for.

    The compiled module uses torch's C++ classes. Loaded into another minor version of torch, it fails with an
    unresolved symbol at best.
    """
    found = torch.__version__
    if found.split("+")[0].split(".")[:2] == REQUIRED.split("."):
        return
    raise ImportError(
        f"vccl works with torch {REQUIRED}.x, and found torch {found}. Install a matching pair "
        f"(pip install 'torch=={REQUIRED}.*'), or uninstall vccl (pip uninstall vccl), or set "
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0 to import torch without it."
    )
