"""Reads and writes sizes in bytes such as "64M", and makes series of them."""

from collections.abc import Iterator

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """Returns the bytes of "4", "64K", "1M" or "2GiB" (powers of 1024). Raises ValueError for other texts."""
    number = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = number[-1:] if number[-1:] in UNITS else ""
    size = int(number.removesuffix(unit)) * UNITS[unit]
    if size < 0:
        raise ValueError(f"a size cannot be negative: {text}")
    return size


def format_size(size: int) -> str:
    """Returns the shortest text that parse_size reads back as `size`, such as "64M"."""
    for unit in "GMK":
        if size and size % UNITS[unit] == 0:
            return f"{size // UNITS[unit]}{unit}"
    return str(size)


def series(smallest: int, largest: int, factor: int) -> Iterator[int]:
    """Yields smallest, smallest * factor and so on, up to `largest` and including it if it is met."""
    if smallest < 1 or factor < 2:
        raise ValueError(
            f"a series needs a size of at least 1 and a factor of at least 2: {smallest}, {factor}"
        )
    while smallest <= largest:
        yield smallest
        smallest *= factor
