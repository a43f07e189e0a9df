"""Tells tools outside the process when to record, under the names of ``torch.cuda.profiler``.

No such tool watches virtual cards, so these functions change nothing, as with a GPU that no tool watches.
``torch.profiler`` profiles the cards (docs/profiler.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["profile", "start", "stop"]


def start() -> None:
    """Changes nothing."""


def stop() -> None:
    """Changes nothing."""


@contextlib.contextmanager
def profile() -> Iterator[None]:
    """Calls start() before a ``with`` block and stop() after it."""
    start()
    try:
        yield
    finally:
        stop()
