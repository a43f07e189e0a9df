"""Which torch this package works with, checked before anything compiled is loaded."""

import torch

REQUIRED = (2, 13)


def check() -> None:
    """Raises ImportError, saying what to do, unless the installed torch is one that vccl is built for.

    The compiled module uses torch's C++ classes, whose layout changes from one minor version to the next:
    loading it into another one ends in an unresolved symbol at best.
    """
    found = torch.__version__
    numbers = found.split("+")[0].split(".")
    if len(numbers) >= 2 and tuple(numbers[:2]) == tuple(str(number) for number in REQUIRED):
        return
    required = ".".join(map(str, REQUIRED))
    raise ImportError(
        f"vccl works with torch {required}.x, and found torch {found}. Install a matching pair "
        f"(pip install 'torch=={required}.*'), or uninstall vccl (pip uninstall vccl), or set "
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0 to import torch without it."
    )
