"""Gives every rank the same addresses.

The kernel places the libraries and the heap of each process at random addresses. Processors keep branch
predictions by virtual address, so ranks that share a core evict the predictions of each other at every
switch: with 4 ranks on 2 cores a call of ``dist.all_reduce`` costs 25 microseconds of Python instead of 8.
At the same addresses the ranks, which run the same code, train one predictor. Forks of one process have its
addresses anyway; this is for ranks that are started in another way, and for the agents of pretended hosts.
"""

import contextlib
import ctypes
from collections.abc import Iterator

# These are from sys/personality.h.
ADDR_NO_RANDOMIZE = 0x0040000
QUERY = 0xFFFFFFFF


@contextlib.contextmanager
def alike() -> Iterator[None]:
    """Starts processes at the same addresses inside a ``with`` block.

    A container may forbid that, as Docker does by default. The processes then start at random addresses.
    """
    libc = ctypes.CDLL(None)
    libc.personality.argtypes = [ctypes.c_ulong]
    before = libc.personality(QUERY)
    if before == -1 or libc.personality(before | ADDR_NO_RANDOMIZE) == -1:
        yield
        return
    try:
        yield
    finally:
        libc.personality(before)
