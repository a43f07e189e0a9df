"""The backend ``vccl`` of ``torch.distributed``: its registration, and what C++ needs from Python."""

import atexit
import copy
import datetime
import functools
import importlib.util
import pathlib
from typing import TYPE_CHECKING

import torch.distributed as dist

from vccl import _cpu_memory, _shim

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _DistributedBackendOptions

    from vccl._C import ProcessGroupVccl

# What a process that ends without destroy_process_group() grants the collectives it has launched.
_PATIENCE_AT_EXIT = datetime.timedelta(seconds=2)


def register() -> None:
    """Makes ``init_process_group("vccl")`` known, for tensors on vdev and the CPU. Idempotent, cheap."""
    if not dist.is_available() or "VCCL" in dist.Backend._plugins:
        return
    dist.Backend.register_backend("vccl", _create, extended_api=True, devices=["vdev", "cpu"])
    _shim.patch_distributed()


def _create(
    options: "_DistributedBackendOptions", pg_options: "ProcessGroupVccl.Options | None"
) -> "ProcessGroupVccl":
    """Makes the process group of one rank; no communicator yet.

    Raises:
        TypeError: ``pg_options`` is not a ``vccl.Options``.
    """
    from vccl._C import ProcessGroupVccl

    if pg_options is None:
        pg_options = ProcessGroupVccl.Options()
    elif not isinstance(pg_options, ProcessGroupVccl.Options):
        raise TypeError(
            f"backend vccl takes pg_options of type vccl.Options, not {type(pg_options).__name__}"
        )
    else:
        pg_options = copy.copy(pg_options)  # the caller's may serve for another group
    pg_options._timeout = options.timeout
    pg_options.group_name = options.group_id
    # [] for the default group, which holds every rank.
    ranks = options.global_ranks_in_group or range(options.group_size)
    pg_options.global_ranks_in_group = list(ranks)
    _prepare_process()
    _cpu_memory.share_if_asked()  # a forked process shares nothing yet, whatever its parent did
    return ProcessGroupVccl(options.store, options.group_rank, options.group_size, pg_options)


@functools.cache
def _prepare_process() -> None:
    """What the first group of a process needs."""
    from vccl import _C

    library = _find_libzmq()
    if library is not None:
        _C._set_zmq_library_path(str(library))
    # Registered later than the device's own hook, hence run before it: streams still work when groups close.
    atexit.register(_C._shutdown_process_groups, _PATIENCE_AT_EXIT)


def _find_libzmq() -> pathlib.Path | None:
    """The libzmq that the pyzmq wheel ships, found without importing zmq; None where the wheel has none."""
    spec = importlib.util.find_spec("zmq")
    if spec is None or spec.origin is None:
        return None
    package = pathlib.Path(spec.origin).parent
    # Wheels repaired by auditwheel keep libraries in <distribution>.libs beside the package, others in it.
    for folder in (package.parent / "pyzmq.libs", package / ".libs", package):
        found = sorted(folder.glob("libzmq*.so*"))
        if found:
            return found[0]
    return None
