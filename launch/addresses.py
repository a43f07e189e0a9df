"""The same addresses in every rank.

The kernel places each process's libraries and heap at random. Ranks that share a core then evict one
another's branch predictions at every switch, since processors keep these by virtual address: with 4 ranks on
2 cores a call of ``dist.all_reduce`` costs 25 microseconds of Python instead of 8. Without the randomness the
ranks, which run the same code, train one predictor. And what a debugger shows of one rank holds in the
others, and in the next run.
"""

import contextlib
import ctypes
from collections.abc import Iterator

# sys/personality.h
ADDR_NO_RANDOMIZE = 0x0040000
QUERY = 0xFFFFFFFF


@contextlib.contextmanager
def alike() -> Iterator[None]:
    """Processes started meanwhile get the addresses that every such process gets. Where a container forbids
    that (Docker's default does), they start as ever."""
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
