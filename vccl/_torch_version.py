"""The version and build of torch that this package supports, checked before anything compiled is loaded.

Makefile and CMakeLists.txt read it here. tests/project/test_torch_version.py compares the other places that
name it.
"""

import os

import torch

TESTED = "2.13.0"
# The minor version decides: torch's C++ classes change their layout from one to the next.
REQUIRED = ".".join(TESTED.split(".")[:2])


def check() -> None:
    """Raises ImportError, and says what to do, unless vccl is built for the installed torch.

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
