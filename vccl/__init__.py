"""Adds virtual cards (device ``vdev``) and a collective backend for them (``vccl``) to PyTorch.

A program need not import this package: ``import torch`` finds it through its entry point
(``vccl_entry/torch_backend.py``). ``import vccl`` does the same where that is switched off, by
TORCH_DEVICE_BACKEND_AUTOLOAD=0, or because the machine has a GPU. Either way the import reserves no memory
and starts no thread. That happens when a card is first used, or CPU memory is shared.

PYTEST_DONT_REWRITE: with this word, pytest does not warn that it cannot rewrite the assertions of a package
that torch has imported before. It would rewrite them because the installation has a plugin.
"""

from . import _version

__version__ = _version.VERSION

cmake_prefix_path: str  # which __getattr__() finds
include_path: str
library_path: str


_FOLDERS_FOR_CPP = {"cmake_prefix_path": "share/cmake", "include_path": "include", "library_path": ""}


def __getattr__(name: str) -> object:
    """Returns ``Options``, ``monitored_barrier``, ``share_cpu_memory``, ``record``, or a folder for C++.

    ``init_process_group`` and ``new_group`` take Options as ``pg_options``. monitored_barrier names the
    ranks that did not come. share_cpu_memory puts large CPU tensors into memory that the peers of the host
    can map. record writes down what the groups of this process do. cmake_prefix_path is the folder in which
    CMake's ``find_package(vccl)`` finds the package. include_path has the headers
    ``<vccl/...>``, and library_path the ``libvccl.so`` for this torch.
    """
    # They are not imported at the top, because torch may import this package before its own import has ended.
    if name == "Options":
        from vccl._C import ProcessGroupVccl

        return ProcessGroupVccl.Options
    if name == "monitored_barrier":
        from vccl._groups.monitored_barrier import monitored_barrier

        return monitored_barrier
    if name == "share_cpu_memory":
        from vccl._groups.cpu_memory import share_cpu_memory

        return share_cpu_memory
    if name == "record":
        from vccl._groups.record import record

        return record
    if name in _FOLDERS_FOR_CPP:
        from vccl import _C

        compiled = _C.__file__.rpartition("/")[0]
        package = compiled.rpartition("/")[0]
        return compiled if name == "library_path" else f"{package}/{_FOLDERS_FOR_CPP[name]}"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "Options", "monitored_barrier", "share_cpu_memory", "record", *_FOLDERS_FOR_CPP]


# Where torch is not imported yet, its import leaves the device to the call that follows.
import torch as _torch  # noqa: E402, F401

from . import _loading  # noqa: E402

_loading.load()
