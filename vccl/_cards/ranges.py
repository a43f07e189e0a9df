"""Ranges and marks that a program sets, as NVTX has them: the profiler shows them.

A profile shows a range on the lane of the thread that began it. A range of push() is one of
``torch.profiler.record_function``, so the profile also shows it on the lanes of the card, above what was
launched inside of it. Without a profile nobody records a range.
"""

import itertools
import threading
from typing import Any

import torch


class _Thread(threading.local):
    """Holds the open ranges of the calling thread, the innermost last."""

    def __init__(self) -> None:
        self.open: list[Any] = []


_thread = _Thread()
_started: dict[int, Any] = {}  # ranges of start() by their numbers; any thread may end them
_numbers = itertools.count(1)


def _begin(message: str) -> Any:
    # The calls of torch.ops take 20 us, also without a profile.
    if not torch.autograd._profiler_enabled():
        return None
    return torch.ops.profiler._record_function_enter_new(message, None)


def _end(record: Any) -> None:
    if record is not None:
        torch.ops.profiler._record_function_exit._RecordFunction(record)


def push(message: str) -> int:
    """Begins a range inside the calling thread's innermost range. Returns its depth, from 0."""
    _thread.open.append(_begin(message))
    return len(_thread.open) - 1


def pop() -> int:
    """Ends the calling thread's innermost range. Returns its depth, or -1 if none is open."""
    if _thread.open:
        _end(_thread.open.pop())
        return len(_thread.open)
    return -1


def start(message: str) -> int:
    """Begins a range that any thread may end, at any time. Returns its number."""
    number = next(_numbers)
    # Ranges on the lanes of the card must be nested, as torch finds them by a stack. These may overlap.
    record = torch._C._profiler._RecordFunctionFast(message)
    record.__enter__()
    _started[number] = record
    return number


def end(number: int) -> None:
    """Ends a range of start(). A number that is no open range's changes nothing, as with NVTX."""
    record = _started.pop(number, None)
    if record is not None:
        record.__exit__(None, None, None)


def mark(message: str) -> None:
    """Marks a moment: a range that ends at once."""
    _end(_begin(message))
