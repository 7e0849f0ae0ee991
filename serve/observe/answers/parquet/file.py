"""A Parquet file of record batches, to whose groups of rows each batch adds a page of each column."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache

import pyarrow as pa

from recsys.base.machine import package_version
from serve.observe.answers.parquet.pages import Chunk, Encoding, Type, type_of
from serve.observe.answers.parquet.thrift import Kind, Struct, binary, integer

_MAGIC = b"PAR1"
# The most parts of one write on every system (IOV_MAX).
_MOST_PARTS = 1024
_REQUIRED, _OPTIONAL, _REPEATED = 0, 1, 2
# Converted types, for readers that do not know the logical ones.
_UTF8, _LIST, _TIMESTAMP_MICROS = 0, 3, 10


class ParquetFile:
    """Writes a file. Not thread-safe.

    Args:
        write: takes bytes in parts, in their order.
        schema: columns of int32, int64, float32, texts and times, and lists of them.
        unique: columns of texts that rarely repeat, which no dictionary holds.

    What ``write`` raises, its methods raise.
    """

    def __init__(
        self, write: Callable[[Sequence[bytes]], object], schema: pa.Schema, unique: Collection[str] = ()
    ) -> None:
        self._sink, self._schema, self._unique = write, schema, frozenset(unique)
        self._chunks = self._new_chunks()
        self._num_waiting_rows = self._waiting_bytes = 0
        self._num_rows = self._written_bytes = 0
        self._groups: list[bytes] = []
        self._write([_MAGIC])

    @property
    def num_bytes(self) -> int:
        """Bytes on the disk and those that wait."""
        return self._written_bytes + self._waiting_bytes

    @property
    def num_waiting_rows(self) -> int:
        """Rows of the group that is not written yet."""
        return self._num_waiting_rows

    @property
    def waiting_bytes(self) -> int:
        """Their bytes."""
        return self._waiting_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows to the group; nothing of the batch is used later."""
        if not batch.num_rows:
            return
        # Most lists share the offsets.
        singles: set[int] = set()
        for chunk, array in zip(self._chunks, batch.columns, strict=True):
            self._waiting_bytes += chunk.add(array, singles)
        self._num_waiting_rows += batch.num_rows

    def end_group(self) -> None:
        """Write the group, if it has rows."""
        if not self._num_waiting_rows:
            return
        began = self._written_bytes
        columns = []
        for field, chunk in zip(self._schema, self._chunks, strict=True):
            columns.append(self._write_chunk(field, chunk))
        num_bytes = self._written_bytes - began
        group = Struct().list(1, Kind.STRUCT, columns).i64(2, num_bytes).i64(3, self._num_waiting_rows)
        self._groups.append(group.encoded())
        self._num_rows += self._num_waiting_rows
        self._chunks = self._new_chunks()
        self._num_waiting_rows = self._waiting_bytes = 0

    def close(self, metadata: Mapping[bytes, bytes]) -> None:
        """Write all that waits, and what the file says of itself."""
        self.end_group()
        pairs = [Struct().binary(1, key).binary(2, value).encoded() for key, value in metadata.items()]
        # Statistics are ordered as the types are.
        orders = [Struct().struct(1, Struct()).encoded() for _ in self._schema]
        footer = (
            Struct()
            .i32(1, 2)
            .list(2, Kind.STRUCT, _schema_elements(self._schema))
            .i64(3, self._num_rows)
            .list(4, Kind.STRUCT, self._groups)
            .list(5, Kind.STRUCT, pairs)
            .binary(6, _created_by())
            .list(7, Kind.STRUCT, orders)
            .encoded()
        )
        self._write([footer, len(footer).to_bytes(4, "little"), _MAGIC])

    def _new_chunks(self) -> list[Chunk]:
        return [Chunk(field, field.name not in self._unique) for field in self._schema]

    def _write_chunk(self, field: pa.Field, chunk: Chunk) -> bytes:
        """Write the pages of a column; returns what the file says of them."""
        began = self._written_bytes
        dictionary = chunk.dictionary_page()
        first = began + len(dictionary)
        self._write([dictionary, *chunk.pages])
        num_bytes = self._written_bytes - began
        encodings = {Encoding.RLE, *chunk.encodings} | ({Encoding.PLAIN} if dictionary else set())
        about = (
            Struct()
            .i32(1, type_of(_value_type(field)))
            .list(2, Kind.I32, [integer(one) for one in sorted(encodings)])
            .list(3, Kind.BINARY, [binary(name.encode()) for name in _path(field)])
            .i32(4, 0)  # not compressed
            .i64(5, chunk.num_values)
            .i64(6, num_bytes)
            .i64(7, num_bytes)
            .i64(9, first)
        )
        if dictionary:
            about.i64(11, began)
        if chunk.least is not None and chunk.most is not None:
            limits = [limit.to_bytes(8, "little", signed=True) for limit in (chunk.most, chunk.least)]
            about.struct(12, Struct().i64(3, 0).binary(5, limits[0]).binary(6, limits[1]))
        return Struct().i64(2, began).struct(3, about).encoded()

    def _write(self, parts: list[bytes]) -> None:
        self._written_bytes += sum(map(len, parts))
        self._sink(parts)


def write_parts(descriptor: int, parts: Sequence[bytes]) -> None:
    """Write parts to an open file, with few calls.

    Raises:
        OSError: it cannot be written.
    """
    waiting = [memoryview(part) for part in parts if part]
    while waiting:
        num_written = os.writev(descriptor, waiting[:_MOST_PARTS])
        while waiting and num_written >= len(waiting[0]):
            num_written -= len(waiting.pop(0))
        if num_written:
            waiting[0] = waiting[0][num_written:]


@cache
def _created_by() -> bytes:
    """Return the name and version in the form that readers expect."""
    return f"recsys-serving version {package_version('recsys-serving') or 0} (build 0)".encode()


def _value_type(field: pa.Field) -> pa.DataType:
    return field.type.value_type if pa.types.is_list(field.type) else field.type


def _path(field: pa.Field) -> list[str]:
    return [field.name, "list", "element"] if pa.types.is_list(field.type) else [field.name]


def _schema_elements(schema: pa.Schema) -> list[bytes]:
    """Return the tree of columns, depth first."""
    found = [Struct().binary(4, b"schema").i32(5, len(schema)).encoded()]
    for field in schema:
        repetition = _OPTIONAL if field.nullable else _REQUIRED
        if not pa.types.is_list(field.type):
            found.append(_value_element(field.name, field.type, repetition))
            continue
        lists = Struct().i32(3, repetition).binary(4, field.name.encode()).i32(5, 1).i32(6, _LIST)
        found.append(lists.struct(10, Struct().struct(3, Struct())).encoded())
        found.append(Struct().i32(3, _REPEATED).binary(4, b"list").i32(5, 1).encoded())
        found.append(_value_element("element", field.type.value_type, _OPTIONAL))
    return found


def _value_element(name: str, kind: pa.DataType, repetition: int) -> bytes:
    physical = type_of(kind)
    element = Struct().i32(1, physical).i32(3, repetition).binary(4, name.encode())
    if physical is Type.BYTE_ARRAY:
        element.i32(6, _UTF8).struct(10, Struct().struct(1, Struct()))
    elif pa.types.is_timestamp(kind):
        times = Struct().flag(1, kind.tz is not None).struct(2, Struct().struct(2, Struct()))
        element.i32(6, _TIMESTAMP_MICROS).struct(10, Struct().struct(8, times))
    return element.encoded()
