"""Names parts of a program for ``torch.profiler``, as ``torch.cuda.nvtx`` does for NVIDIA's tools.

docs/profiler.md says where a profile shows them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from vccl._cards import ranges

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]


def range_push(msg: str) -> int:
    """Begins a range inside the calling thread's innermost range. Returns its depth, from 0."""
    return ranges.push(msg)


def range_pop() -> int:
    """Ends the calling thread's innermost range. Returns its depth, or -1 if none is open."""
    return ranges.pop()


def range_start(msg: str) -> int:
    """Begins a range that may overlap with others, and end on another thread. Returns its number."""
    return ranges.start(msg)


def range_end(range_id: int) -> None:
    """Ends the range of that number. A number that is no open range's changes nothing."""
    ranges.end(range_id)


def mark(msg: str) -> None:
    """Marks a moment."""
    ranges.mark(msg)


@contextlib.contextmanager
def range(msg: str, *args: object, **kwargs: object) -> Iterator[None]:
    """Is a range around a ``with`` block or a decorated function, named ``msg.format(*args, **kwargs)``."""
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
