"""Knows which memory a kernel may use: the storages of the tensors that it was given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vccl import _C
from vccl._triton.errors import OutOfRangeError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Memory:
    """The storage of a tensor that is an argument of the kernel.

    It holds no tensor: the memory is the kernel's until it has run, because the stream keeps the order.
    """

    name: str  # of the argument
    pointer: int  # the tensor's first element
    begin: int
    end: int
    item_size: int
    dtype: str

    def text(self) -> str:
        """Returns the storage in words."""
        items = (self.end - self.begin) // self.item_size
        first = (self.pointer - self.begin) // self.item_size
        where = f", and the tensor begins at element {first} of it" if first else ""
        return f"The storage of {self.name!r} has {items} elements of {self.dtype}{where}."


class KnownMemory:
    """The memory of all arguments of one launch, and of the card that they are on."""

    def __init__(self, memories: Iterable[Memory], card: int) -> None:
        """Takes the arguments' storages, and the index of the card that the kernel runs on."""
        self._memories = sorted(set(memories), key=lambda memory: (memory.begin, memory.end))
        self._card = card
        self._segments: list[tuple[int, int]] = []

    def check(self, addresses: Array, size: int, origin: Memory | None, verb: str) -> None:
        """Raises OutOfRangeError if an element at one of the addresses is outside of the kernel's memory.

        Args:
            addresses: of the elements that are used, not of those that a mask excludes.
            size: the bytes of an element.
            origin: the argument that the pointers were computed from. None for pointers that the kernel has
                loaded from memory, or has chosen among several arguments: these may point into any.
            verb: "reads" or "writes", for the text.
        """
        if addresses.size == 0:
            return
        low, high = int(addresses.min()), int(addresses.max()) + size
        if origin is not None:
            if origin.begin <= low and high <= origin.end:
                return
            bad = addresses[(addresses < origin.begin) | (addresses > origin.end - size)]
            raise OutOfRangeError(self._text(int(bad.min()), size, origin, verb))
        if self._contains(low, high):
            return
        for address in np.unique(addresses).tolist():
            if not self._contains(address, address + size):
                raise OutOfRangeError(
                    f"it {verb} {size} bytes at address {address:#x}, which is in no tensor that the kernel "
                    "was given, and not in the memory of its card"
                )

    def _contains(self, begin: int, end: int) -> bool:
        if any(memory.begin <= begin and end <= memory.end for memory in self._memories):
            return True
        # A kernel may load pointers from memory, and they may point to tensors that are no arguments. These
        # may have been freed since the launch, which leaves their memory to the kernel.
        if any(first <= begin and end <= last for first, last in self._segments):
            return True
        self._segments = [
            (segment["address"], segment["address"] + segment["total_size"])
            for segment in _C._memory_snapshot(None, False)["segments"]
            if segment["device"] == self._card
        ]
        return any(first <= begin and end <= last for first, last in self._segments)

    @staticmethod
    def _text(address: int, size: int, origin: Memory, verb: str) -> str:
        offset, rest = divmod(address - origin.pointer, origin.item_size)
        place = f"element {offset}" if rest == 0 else f"byte {address - origin.pointer}"
        return f"it {verb} {place} of {origin.name!r}, which is out of range. {origin.text()}"
