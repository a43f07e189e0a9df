"""Checks arguments that the compiled module would refuse in the words of its own signatures."""

from __future__ import annotations

import torch

# One more than the largest size or address.
_END = 1 << 64


def whole_number(value: object, name: str) -> int:
    """Returns ``value``, the argument ``name`` of the caller, which has to be a size or an address.

    Raises:
        TypeError: it is not an int.
        ValueError: it is negative, or larger than any size or address.
    """
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if not 0 <= value < _END:
        raise ValueError(f"{name} must be from 0 to 2**64 - 1, got {value}")
    return value


def stream_or_none(stream: object) -> torch.Stream | None:
    """Returns the caller's argument ``stream``. Raises TypeError if it is neither a stream nor None."""
    if stream is not None and not isinstance(stream, torch.Stream):
        raise TypeError(f"stream must be a torch.Stream or None, got {type(stream).__name__}")
    return stream
