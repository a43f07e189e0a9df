"""Adds virtual cards (device ``vdev``) and a collective backend for them (``vccl``) to PyTorch.

A program need not import this package: ``import torch`` finds it through its entry point. ``import vccl``
does the same where TORCH_DEVICE_BACKEND_AUTOLOAD=0 switches that off. Either way the import reserves no
memory and starts no thread. That happens when a card is first used, or CPU memory is shared.
"""

__version__ = "0.1.0"

cmake_prefix_path: str  # which __getattr__() finds

_loaded = False


def _autoload() -> None:
    """Adds the device and the backend to torch. ``import torch`` calls it; further calls do nothing.

    Raises:
        ImportError: the installed torch is not of the version that this package was built for.
        RuntimeError: VDEV_POSE asks for CUDA, and torch was built with it.
        ValueError: VCCL_SHARE_CPU has a value that is not allowed.
    """
    global _loaded
    if _loaded:
        return
    from torch.utils._python_dispatch import _disable_current_modes

    from vccl import _torch_version

    _torch_version.check()
    _torch_version.check_pose()
    # TORCH_CUDA_SANITIZER enables a dispatch mode before the cards are there, and operators that are called
    # while they are put in would ask the mode's torch.cuda for its stream.
    with _disable_current_modes():
        _load()
    _loaded = True


def _load() -> None:
    """Registers the device and the backend."""
    from vccl._device_type import device_type

    if device_type() == "cuda":
        from vccl import cuda

        cuda.register()
    else:
        from vccl import vdev

        vdev.register()
    from vccl import _cpu_memory, distributed

    distributed.register()
    _cpu_memory.share_if_asked()


def __getattr__(name: str) -> object:
    """Returns ``Options``, ``monitored_barrier``, ``share_cpu_memory`` or ``cmake_prefix_path``.

    ``init_process_group`` and ``new_group`` take Options as ``pg_options``. monitored_barrier names the
    ranks that did not come. share_cpu_memory puts large CPU tensors into memory that the peers of the host
    can map. cmake_prefix_path is the folder in which CMake's ``find_package(vccl)`` finds the package.
    """
    # They are not imported at the top, because torch may import this package before its own import has ended.
    if name == "Options":
        from vccl._C import ProcessGroupVccl

        return ProcessGroupVccl.Options
    if name == "monitored_barrier":
        from vccl._monitored_barrier import monitored_barrier

        return monitored_barrier
    if name == "share_cpu_memory":
        from vccl._cpu_memory import share_cpu_memory

        return share_cpu_memory
    if name == "cmake_prefix_path":
        from vccl import _C

        return f"{_C.__file__.rpartition('/')[0]}/share/cmake"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "Options", "cmake_prefix_path", "monitored_barrier", "share_cpu_memory"]


# This import may call _autoload() while this module is only half run, so it comes after the definitions.
import torch as _torch  # noqa: E402, F401

_autoload()
