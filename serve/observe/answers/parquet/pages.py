"""Pages of one column of a Parquet file: the levels that say where lists begin and what is null, and the values.

Shape letters: R rows, N elements of all lists, L levels (one for each element, empty list and null).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recsys.kernels.operators import delta_packer
from serve.observe.answers.parquet.thrift import Struct, integer, varint


class Type(IntEnum):
    """Parquet's physical types of values."""

    INT32 = 1
    INT64 = 2
    FLOAT = 4
    BYTE_ARRAY = 6


class Encoding(IntEnum):
    """Parquet's encodings of values and levels."""

    PLAIN = 0
    RLE = 3
    DELTA_BINARY_PACKED = 5
    DELTA_LENGTH_BYTE_ARRAY = 6
    RLE_DICTIONARY = 8


_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
# A dictionary does not grow beyond it: further pages have their texts themselves.
_DICTIONARY_BYTES = 1 << 20
# The end of a data page's description: both kinds of levels are runs.
_LEVELS_BY_RUNS = b"\x15\x06\x15\x06\0"
_NUMBERS: dict[Type, np.dtype[Any]] = {
    Type.INT32: np.dtype("<i4"),
    Type.INT64: np.dtype("<i8"),
    Type.FLOAT: np.dtype("<f4"),
}


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Where lists begin, and what is null.

    Attributes:
        num_levels: L.
        repetition: uint8 ``[L]``, of lists: 0 where a row begins, else 1; None if each is a row.
        definition: uint8 ``[L]``: the highest where there is a value; None if there is everywhere.
    """

    num_levels: int
    repetition: npt.NDArray[np.uint8] | None = None
    definition: npt.NDArray[np.uint8] | None = None


def type_of(kind: pa.DataType) -> Type:
    """Return the physical type of values.

    Raises:
        TypeError: an answer log has none of this type.
    """
    if pa.types.is_string(kind):
        return Type.BYTE_ARRAY
    if kind == pa.int32():
        return Type.INT32
    if kind == pa.int64() or (pa.types.is_timestamp(kind) and kind.unit == "us"):
        return Type.INT64
    if kind == pa.float32():
        return Type.FLOAT
    raise TypeError(f"got {kind}, expected int32, int64, float32, string or timestamp in microseconds")


class Chunk:
    """The pages of a column in one group of rows.

    Args:
        field: the column: values, or lists of them, of which no element is null.
        has_dictionary: whether texts are written by their number in a dictionary.

    Attributes:
        num_values: L of all pages.
        pages: the pages of values, in parts.
        encodings: the encodings of their values.
        least, most: of a column of times, the least and greatest; None without rows.
    """

    def __init__(self, field: pa.Field, has_dictionary: bool) -> None:
        self._is_list = pa.types.is_list(field.type)
        # The level of a value that is not null: nullable lists of nullable elements have four levels.
        self._max_definition = int(field.nullable) + 2 * int(self._is_list)
        self._kind = field.type.value_type if self._is_list else field.type
        self._type = type_of(self._kind)
        self.num_values = 0
        self.pages: list[bytes] = []
        self.encodings: set[Encoding] = set()
        self.least: int | None = None
        self.most: int | None = None
        self._places: dict[bytes, int] | None = {} if has_dictionary else None
        self._dictionary: list[bytes] = []
        self._dictionary_bytes = 0

    def add(self, array: pa.Array, singles: set[int]) -> int:
        """Write a page of rows; returns its bytes.

        Args:
            array: the rows.
            singles: gets where offsets lie of lists that have one element each, as many as these rows.
        """
        if self._is_list:
            levels, values = _levels_of_lists(array, self._max_definition, singles)
        else:
            levels, values = _levels_of_values(array), array.drop_null() if array.null_count else array
        encoding, data = self._encoded(values)
        self.encodings.add(encoding)
        self.num_values += levels.num_levels
        parts = []
        if self._is_list:
            parts.append(_sized(_runs(levels.repetition, 0, levels.num_levels, 1)))
        if self._max_definition:
            bits = self._max_definition.bit_length()
            parts.append(_sized(_runs(levels.definition, self._max_definition, levels.num_levels, bits)))
        num_bytes = sum(map(len, parts)) + len(data)
        self.pages += [_data_page_header(num_bytes, levels.num_levels, encoding), *parts, data]
        return num_bytes

    def dictionary_page(self) -> bytes:
        """Return the page of the dictionary, which comes before the others; empty without one."""
        if Encoding.RLE_DICTIONARY not in self.encodings:
            return b""
        data = _plain_texts(self._dictionary)
        about = Struct().i32(1, len(self._dictionary)).i32(2, Encoding.PLAIN)
        sizes = Struct().i32(1, _DICTIONARY_PAGE).i32(2, len(data)).i32(3, len(data))
        return sizes.struct(7, about).encoded() + data

    def _encoded(self, values: pa.Array) -> tuple[Encoding, bytes]:
        if self._type is Type.BYTE_ARRAY:
            return self._encoded_texts(values)
        dtype = _NUMBERS[self._type]
        numbers = numbers_of(values, dtype)
        if pa.types.is_timestamp(self._kind) and len(numbers):
            least, most = int(numbers.min()), int(numbers.max())
            self.least = least if self.least is None else min(self.least, least)
            self.most = most if self.most is None else max(self.most, most)
        pack = delta_packer()
        if self._type is Type.FLOAT or pack is None:
            return Encoding.PLAIN, numbers.tobytes()
        return Encoding.DELTA_BINARY_PACKED, pack(numbers)

    def _encoded_texts(self, values: pa.Array) -> tuple[Encoding, bytes]:
        if self._places is not None and self._dictionary_bytes < _DICTIONARY_BYTES:
            return Encoding.RLE_DICTIONARY, self._by_number(values)
        pack = delta_packer()
        if pack is None:
            return Encoding.PLAIN, _plain_texts(values.cast(pa.binary()).to_pylist())
        offsets, data = texts_of(values)
        lengths = np.diff(offsets)
        return Encoding.DELTA_LENGTH_BYTE_ARRAY, pack(lengths) + data

    def _by_number(self, values: pa.Array) -> bytes:
        """Return texts as their numbers in the dictionary, to which it adds new ones."""
        assert self._places is not None
        texts, indices = _distinct(values)
        places = np.empty(len(texts), np.int32)
        for i, text in enumerate(texts):
            place = self._places.get(text)
            if place is None:
                place = self._places[text] = len(self._dictionary)
                self._dictionary.append(text)
                self._dictionary_bytes += len(text) + 4
            places[i] = place
        bits = max(len(self._dictionary) - 1, 0).bit_length()
        first = int(places[0]) if len(places) else 0
        numbers = None if indices is None else places[indices]
        return bytes([bits]) + _runs(numbers, first, len(values), bits)


def _levels_of_values(array: pa.Array) -> Levels:
    if not array.null_count:
        return Levels(num_levels=len(array))
    return Levels(num_levels=len(array), definition=_valid(array))


def _valid(array: pa.Array) -> npt.NDArray[np.uint8]:
    """Return 1 where an array with nulls has a value, and else 0; pandas, which ``to_numpy`` imports, is not needed."""
    bits = np.frombuffer(array.buffers()[0], np.uint8)
    return np.unpackbits(bits, count=array.offset + len(array), bitorder="little")[array.offset :]


def _levels_of_lists(lists: pa.Array, max_definition: int, singles: set[int]) -> tuple[Levels, pa.Array]:
    """Return the levels of lists, and their elements; ``singles`` as in ``Chunk.add``."""
    buffer = lists.buffers()[1]
    offsets = np.frombuffer(buffer, np.int32, len(lists) + 1, 4 * lists.offset)
    address = buffer.address + 4 * lists.offset
    is_single = address in singles and not lists.null_count
    lengths = np.empty(0, np.int32) if is_single else np.diff(offsets)
    valid = None
    if lists.null_count:
        valid = _valid(lists).astype(np.bool_)
        lengths = np.where(valid, lengths, 0)
        values = lists.flatten()  # without those of nulls
    else:
        values = lists.values.slice(offsets[0], offsets[-1] - offsets[0])
    if values.null_count:
        raise ValueError("got a null in a list, expected none")
    if is_single or (lengths == 1).all():
        singles.add(address)
        return Levels(num_levels=len(lists)), values
    counts = np.maximum(lengths, 1)
    starts = np.cumsum(counts, dtype=np.int64) - counts
    num_levels = int(counts.sum(dtype=np.int64))
    repetition = np.ones(num_levels, np.uint8)
    repetition[starts] = 0
    definition = None
    if num_levels > len(values):
        definition = np.full(num_levels, max_definition, np.uint8)
        definition[starts[lengths == 0]] = max_definition - 2
        if valid is not None:
            definition[starts[~valid]] = 0
    return Levels(num_levels=num_levels, repetition=repetition, definition=definition), values


def numbers_of(values: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return numbers without nulls as they lie in memory."""
    buffer = values.buffers()[1]
    if buffer is None or not len(values):
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, len(values), values.offset * dtype.itemsize)


def texts_of(values: pa.Array) -> tuple[npt.NDArray[np.int32], bytes]:
    """Return the offsets of texts without nulls, int32 ``[N + 1]`` from 0 on, and their bytes."""
    _, offsets_buffer, data = values.buffers()
    if not len(values):
        return np.zeros(1, np.int32), b""
    offsets = np.frombuffer(offsets_buffer, np.int32, len(values) + 1, 4 * values.offset)
    first, end = int(offsets[0]), int(offsets[-1])
    return offsets - offsets[0], data.slice(first, end - first).to_pybytes() if end > first else b""


def _distinct(values: pa.Array) -> tuple[list[bytes], npt.NDArray[np.int32] | None]:
    """Return the different texts, and the number of each text among them; None if all are the same."""
    offsets, data = texts_of(values)
    first = data[: offsets[1] - offsets[0]] if len(values) else b""
    if (np.diff(offsets) == len(first)).all() and data == first * len(values):
        return [first] if len(values) else [], None
    found = values.cast(pa.binary()).dictionary_encode()
    return found.dictionary.to_pylist(), numbers_of(found.indices, np.dtype(np.int32))


def _plain_texts(texts: list[bytes]) -> bytes:
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def _runs(numbers: npt.NDArray[Any] | None, same: int, count: int, bits: int) -> bytes:
    """Return numbers of ``bits`` bits in Parquet's hybrid of runs and packed bits.

    Args:
        numbers: ``[count]``; None if all are ``same``.
        same: see there.
        count: how many they are.
        bits: of each.
    """
    if not count:
        return b""
    if numbers is None:
        return varint(count << 1) + same.to_bytes((bits + 7) // 8, "little")
    num_groups = (count + 7) // 8
    if bits > 1:
        shifts = np.arange(bits, dtype=numbers.dtype)
        numbers = (numbers[:, None] >> shifts & 1).astype(np.uint8)
    packed = np.packbits(numbers, bitorder="little").tobytes()
    return varint(num_groups << 1 | 1) + packed.ljust(num_groups * bits, b"\0")


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def _data_page_header(num_bytes: int, num_levels: int, encoding: Encoding) -> bytes:
    """Return a page's header; written out, because ``Struct`` would take as long as the page."""
    size = integer(num_bytes)
    values = b"\x15" + integer(num_levels) + b"\x15" + integer(encoding) + _LEVELS_BY_RUNS
    # Fields 1 to 3 and 5: data page, its bytes before and after compression, and what it holds.
    return b"\x15\x00\x15" + size + b"\x15" + size + b"\x2c" + values + b"\0"
