"""Lets torch's functions that dump the flight recorder show the operations of vccl.

Torch keeps its recorder in C++ for its own backends, and exports no way to write into it. The groups of vccl
write their own, whose dumps have the same form. Where the default group has the backend vccl, its dumps are
those of the process.
"""

from collections.abc import Callable

from torch.distributed import distributed_c10d as c10d

from vccl import _C
from vccl._groups.backends import vccl_backends
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="dumps of the flight recorder have no operation of vccl",
    until="backends can write into torch's flight recorder",
)


def _is_ours() -> bool:
    default = c10d._world.default_pg
    return default is not None and bool(vccl_backends(default))


@PATCH.replaces(
    "torch._C._distributed_c10d:_dump_fr_trace",
    "(includeCollectives=..., includeStackTraces=..., onlyActive=...)",
)
def _dump_fr_trace(
    original: Callable[..., bytes],
    includeCollectives: bool | None = None,
    includeStackTraces: bool | None = None,
    onlyActive: bool | None = None,
) -> bytes:
    if not _is_ours():
        return original(includeCollectives, includeStackTraces, onlyActive)
    return _C._dump_flight_recorder(
        includeCollectives is not False, includeStackTraces is not False, bool(onlyActive)
    )


@PATCH.replaces("torch._C._distributed_c10d:_dump_fr_trace_json", "(includeCollectives=..., onlyActive=...)")
def _dump_fr_trace_json(
    original: Callable[..., bytes],
    includeCollectives: bool | None = None,
    onlyActive: bool | None = None,
) -> bytes:
    if not _is_ours():
        return original(includeCollectives, onlyActive)
    return _C._dump_flight_recorder_json(includeCollectives is not False, bool(onlyActive))
