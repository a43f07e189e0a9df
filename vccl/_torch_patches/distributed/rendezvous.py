"""Lets Ctrl-C end ``init_process_group("vccl")`` before all ranks have come.

Torch's TCPStore waits in C++ for the other ranks and for its server, up to the group's timeout of 30
minutes, and no signal handler runs meanwhile. For groups of vccl this patch first waits in Python until the
server answers, and then makes the store without a wait for ranks: the group itself waits for its ranks, and
names those that do not come.
"""

import datetime
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from vccl._groups.backends import names_vccl
from vccl._torch_patches.registry import Patch

# Pauses between two tries to connect, in seconds. They double from the shortest to the longest.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
# How long one try may take, in seconds. Python handles signals after each try.
_LONGEST_TRY = 1.0

PATCH = Patch(
    __name__,
    without='`init_process_group("vccl")` waits for the other ranks in TCPStore\'s constructor, up to the '
    "timeout, and Ctrl-C does not end it",
    until="the constructor of TCPStore looks for signals",
)
PATCH.relies_on("torch.distributed.rendezvous:_torchelastic_use_agent_store", "()")

_FIRST = (
    "backend=..., init_method=..., timeout=..., world_size=..., rank=..., store=..., group_name=..., "
    "pg_options=..., device_id=..., _ranks=..."
)

# `making.vccl` is true while this thread makes a default group that has the backend vccl.
_making = threading.local()


@PATCH.replaces(
    "torch.distributed.distributed_c10d:init_process_group",
    {"<2.14": f"({_FIRST})", ">=2.14": f"({_FIRST}, enable_reconfigure=...)"},
    aliases=["torch.distributed:init_process_group"],
)
def _init_process_group(
    original: Callable[..., None], backend: str | None = None, *args: Any, **kwargs: Any
) -> None:
    accelerator = torch._C._get_accelerator().type
    name = backend or dist.Backend.default_device_backend_map.get(accelerator)
    _making.vccl = names_vccl(name)
    try:
        return original(backend, *args, **kwargs)
    finally:
        _making.vccl = False


@PATCH.replaces(
    "torch.distributed.rendezvous:_create_c10d_store",
    "(hostname, port, rank, world_size, timeout, use_libuv=...)",
)
def _create_c10d_store(original: Callable[..., dist.Store], *args: Any, **kwargs: Any) -> dist.Store:
    make = make_store if getattr(_making, "vccl", False) else original
    return make(*args, **kwargs)


def make_store(
    hostname: str,
    port: int,
    rank: int,
    world_size: int,
    timeout: datetime.timedelta,
    use_libuv: bool = True,
) -> dist.Store:
    """Makes the store that torch's ``_create_c10d_store`` makes, and does not wait for the other ranks.

    Raises:
        DistNetworkError: no server was there within the timeout.
        ValueError: the port is out of range.
    """
    from torch.distributed.rendezvous import _torchelastic_use_agent_store

    if not 0 <= port < 2**16:
        raise ValueError(f"port must have value from 0 to 65535 but was {port}.")
    serves = rank == 0 and not _torchelastic_use_agent_store()
    if not serves:
        _await_server(hostname, port, rank, timeout)
    return dist.TCPStore(
        hostname,
        port,
        world_size,
        serves,
        timeout,
        wait_for_workers=False,
        multi_tenant=serves,
        use_libuv=use_libuv,
    )


def _await_server(hostname: str, port: int, rank: int, timeout: datetime.timedelta) -> None:
    """Blocks until a connection to the server succeeds. Signal handlers run meanwhile."""
    deadline = time.monotonic() + timeout.total_seconds()
    pause = _SHORTEST_PAUSE
    while True:
        left = deadline - time.monotonic()
        try:
            socket.create_connection((hostname, port), timeout=min(max(left, 0.001), _LONGEST_TRY)).close()
            return
        except OSError as error:
            if left <= 0:
                raise dist.DistNetworkError(
                    f"rank {rank} could not connect to the rendezvous store at {hostname}:{port} within the "
                    f"timeout of {timeout.total_seconds():g} s: {error}. The process that serves it is rank "
                    "0, or torchrun: does it run, and do all ranks have the same MASTER_ADDR and MASTER_PORT?"
                ) from None
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
