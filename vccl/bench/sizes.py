"""Sizes in bytes: "64M" and back, and the series from smallest to largest."""

from collections.abc import Iterator

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes: "4", "64K", "1M", "2GiB" (powers of 1024). Raises ValueError."""
    number = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = number[-1:] if number[-1:] in UNITS else ""
    size = int(number.removesuffix(unit)) * UNITS[unit]
    if size < 0:
        raise ValueError(f"a size cannot be negative: {text}")
    return size


def format_size(size: int) -> str:
    """The shortest text that parse_size reads back as `size`: "64M"."""
    for unit in "GMK":
        if size and size % UNITS[unit] == 0:
            return f"{size // UNITS[unit]}{unit}"
    return str(size)


def series(smallest: int, largest: int, factor: int) -> Iterator[int]:
    """smallest, smallest * factor, ... up to and including `largest` if it is met."""
    if smallest < 1 or factor < 2:
        raise ValueError(
            f"a series needs a size of at least 1 and a factor of at least 2: {smallest}, {factor}"
        )
    while smallest <= largest:
        yield smallest
        smallest *= factor
