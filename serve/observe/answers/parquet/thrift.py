"""Thrift's compact protocol, in which Parquet describes pages and files."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from enum import IntEnum


class Kind(IntEnum):
    """The types of fields and of elements of lists."""

    TRUE = 1
    FALSE = 2
    I32 = 5
    I64 = 6
    BINARY = 8
    LIST = 9
    STRUCT = 12


_LONG_LIST = 15


def varint(number: int) -> bytes:
    """Return a number that is not negative in groups of 7 bits, the lowest first."""
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


@functools.lru_cache(maxsize=1024)
def integer(number: int) -> bytes:
    """Return a signed number of up to 64 bits."""
    return varint((number << 1) ^ (number >> 63))


def binary(value: bytes) -> bytes:
    """Return bytes with their length."""
    return varint(len(value)) + value


class Struct:
    """A structure; fields are added in the order of their numbers."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._last = 0

    def i32(self, number: int, value: int) -> Struct:
        """Add a number of 32 bits."""
        return self._add(number, Kind.I32, integer(value))

    def i64(self, number: int, value: int) -> Struct:
        """Add a number of 64 bits."""
        return self._add(number, Kind.I64, integer(value))

    def flag(self, number: int, value: bool) -> Struct:
        """Add a truth value."""
        return self._add(number, Kind.TRUE if value else Kind.FALSE, b"")

    def binary(self, number: int, value: bytes) -> Struct:
        """Add bytes."""
        return self._add(number, Kind.BINARY, binary(value))

    def struct(self, number: int, value: Struct) -> Struct:
        """Add a structure."""
        return self._add(number, Kind.STRUCT, value.encoded())

    def list(self, number: int, kind: Kind, items: Sequence[bytes]) -> Struct:
        """Add a list of encoded elements of one type."""
        count = len(items)
        head = bytes([count << 4 | kind]) if count < _LONG_LIST else bytes([0xF0 | kind]) + varint(count)
        return self._add(number, Kind.LIST, head + b"".join(items))

    def encoded(self) -> bytes:
        """Return the structure."""
        return bytes(self._bytes) + b"\0"

    def _add(self, number: int, kind: Kind, value: bytes) -> Struct:
        # Parquet's structures have less than 16 fields.
        self._bytes.append((number - self._last) << 4 | kind)
        self._bytes += value
        self._last = number
        return self
