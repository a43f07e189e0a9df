"""Lets torch's functions that dump the flight recorder show the operations of vccl.

Torch keeps its recorder in C++ for its own backends, and exports no way to write into it. The groups of vccl
write their own, whose dumps have the same form. Where the default group has the backend vccl, its dumps are
those of the process.
"""

from collections.abc import Callable

from torch.distributed import distributed_c10d as c10d

from vccl import _C
from vccl._groups.backends import names_vccl, vccl_backends
from vccl._torch_patches.registry import Patch

PATCH = Patch(
    __name__,
    without="dumps of the flight recorder have no operation of vccl",
    until="backends can write into torch's flight recorder",
)


# Torch 2.15 has a recorder for each backend that records into it, and an argument that names one.
_NAMED = {"<2.15": "", ">=2.15": ", backend=..."}


def _is_ours(options: dict[str, str]) -> bool:
    """Returns whether a call asks for the record of vccl: it names no other backend."""
    default = c10d._world.default_pg
    named = options.get("backend")
    return default is not None and bool(vccl_backends(default)) and (named is None or names_vccl(named))


@PATCH.replaces(
    "torch._C._distributed_c10d:_dump_fr_trace",
    {
        versions: f"(includeCollectives=..., includeStackTraces=..., onlyActive=...{named})"
        for versions, named in _NAMED.items()
    },
)
def _dump_fr_trace(
    original: Callable[..., bytes],
    includeCollectives: bool | None = None,
    includeStackTraces: bool | None = None,
    onlyActive: bool | None = None,
    **options: str,
) -> bytes:
    if not _is_ours(options):
        return original(includeCollectives, includeStackTraces, onlyActive, **options)
    return _C._dump_flight_recorder(
        includeCollectives is not False, includeStackTraces is not False, bool(onlyActive)
    )


@PATCH.replaces(
    "torch._C._distributed_c10d:_dump_fr_trace_json",
    {versions: f"(includeCollectives=..., onlyActive=...{named})" for versions, named in _NAMED.items()},
)
def _dump_fr_trace_json(
    original: Callable[..., bytes],
    includeCollectives: bool | None = None,
    onlyActive: bool | None = None,
    **options: str,
) -> bytes:
    if not _is_ours(options):
        return original(includeCollectives, onlyActive, **options)
    return _C._dump_flight_recorder_json(includeCollectives is not False, bool(onlyActive))
