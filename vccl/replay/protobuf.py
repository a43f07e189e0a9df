"""Writes messages in the wire format of protobuf, as far as Chakra's traces need it."""

from collections.abc import Iterable


class Message:
    """Collects the fields of a message. Fields that have the default are left out, as proto3 does it."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def number(self, field: int, value: int, *, always: bool = False) -> "Message":
        """Adds an integer, an enum or a bool. `always` is for fields of a oneof, whose default counts."""
        if value or always:
            self._bytes += varint(field << 3) + varint(value)
        return self

    def text(self, field: int, value: str, *, always: bool = False) -> "Message":
        encoded = value.encode()
        if encoded or always:
            self._bytes += varint(field << 3 | 2) + varint(len(encoded)) + encoded
        return self

    def message(self, field: int, value: "Message") -> "Message":
        encoded = bytes(value)
        self._bytes += varint(field << 3 | 2) + varint(len(encoded)) + encoded
        return self

    def numbers(self, field: int, values: Iterable[int]) -> "Message":
        """Adds repeated integers, packed."""
        packed = b"".join(varint(value) for value in values)
        if packed:
            self._bytes += varint(field << 3 | 2) + varint(len(packed)) + packed
        return self

    def __bytes__(self) -> bytes:
        return bytes(self._bytes)

    def delimited(self) -> bytes:
        """Returns the message with its length before it, as it stands in a file of messages."""
        return varint(len(self._bytes)) + bytes(self._bytes)


def varint(value: int) -> bytes:
    """Returns an integer of 64 bits, seven bits a byte. A negative one is its two's complement."""
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
