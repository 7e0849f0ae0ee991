"""Arrow types: which are read, and the plain ones that they become.

Frames and files have the same values in many types: pandas 3 has large texts, polars has views of texts, Spark and
Hive have bytes, DuckDB has UUIDs. ``plain`` makes one of them, so that all else knows few types.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def is_text(kind: pa.DataType) -> bool:
    """Return whether a plain type holds texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether a plain type holds bytes that are not UTF-8."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether a plain type holds lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_number(kind: pa.DataType) -> bool:
    """Return whether a plain type converts to float: whole numbers, floats, decimals, bool."""
    types = pa.types
    return bool(
        types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    )


def is_date(kind: pa.DataType) -> bool:
    """Return whether a plain type holds moments or days."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def plain(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array of a plain type.

    Dictionaries and runs are decoded. Texts of any form are strings, lists of any form are lists, and bytes are
    strings if all are UTF-8.
    """
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # no chunks at all
        array = pa.array([], column.type)
    return _plain(array)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that ``plain`` gives, where bytes are UTF-8."""
    return _plain(pa.nulls(0, kind)).type


def plain_table(table: pa.Table, *, keeps_encoded: bool = False) -> pa.Table:
    """Return a table whose columns have plain types; Arrow cannot take rows of some others.

    Args:
        table: The table.
        keeps_encoded: Whether texts with a dictionary stay as they are.
    """
    for i, field in enumerate(table.schema):
        if plain_type(field.type) != field.type and not (keeps_encoded and is_encoded(field.type)):
            table = table.set_column(i, field.name, plain(table.column(i)))
    return table


def is_encoded(kind: pa.DataType) -> bool:
    """Return whether a type holds texts or bytes with a dictionary."""
    return bool(pa.types.is_dictionary(kind)) and (is_text(kind.value_type) or is_bytes(kind.value_type))


def encoded(column: pa.ChunkedArray) -> pa.DictionaryArray | None:
    """Return a column of texts with a dictionary that is no longer than the column; None for others."""
    if not is_encoded(column.type) or not len(column):
        return None
    array = column.combine_chunks()
    return array if len(array.dictionary) <= len(array) and not array.dictionary.null_count else None


def _plain(array: pa.Array) -> pa.Array:
    kind, types = array.type, pa.types
    if getattr(kind, "extension_name", "") == "arrow.uuid":
        return _uuid_texts(array)
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(array.storage)
    if types.is_dictionary(kind):
        return _plain(array.dictionary).take(array.indices)
    if types.is_run_end_encoded(kind):
        return _plain(pc.run_end_decode(array))
    if types.is_string(kind):
        return array
    if types.is_large_string(kind) or types.is_string_view(kind):
        return _as_strings(array)
    if (
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    ):
        return _as_strings(array if types.is_large_binary(kind) else array.cast(pa.binary()))
    if _is_any_list(kind):
        values = _plain(array.flatten())
        if is_list(kind) and values.type == kind.value_type:
            return array
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        ends = pc.cumulative_sum(lengths.cast(pa.int64()))
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
        return pa.LargeListArray.from_arrays(
            offsets, values, mask=array.is_null() if array.null_count else None
        )
    return array


def _uuid_texts(array: pa.ExtensionArray) -> pa.Array:
    """Return UUIDs as they are written, which is how requests send them: 16 bytes are hashed otherwise."""
    size = len(array)
    values = array.storage.cast(pa.binary()).fill_null(bytes(16)).cast(pa.binary(16))
    if not size:
        return pa.nulls(0, pa.string())
    packed = np.frombuffer(values.buffers()[1], np.uint8)[16 * values.offset :][: 16 * size].reshape(size, 16)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    hexes = digits[np.stack([packed >> 4, packed & 15], axis=2)].reshape(size, 32)
    texts = np.insert(hexes, [8, 12, 16, 20], ord("-"), axis=1)
    data = pa.py_buffer(np.ascontiguousarray(texts))
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(36), size, [None, data])
    return pc.if_else(
        array.is_valid(), fixed.cast(pa.binary()).cast(pa.string()), pa.scalar(None, pa.string())
    )


def _is_any_list(kind: pa.DataType) -> bool:
    types = pa.types
    is_view = types.is_list_view(kind) or types.is_large_list_view(kind)
    return bool(is_list(kind) or is_view or types.is_fixed_size_list(kind))


def _as_strings(array: pa.Array) -> pa.Array:
    """Return texts as strings if they fit, bytes as strings if they are UTF-8."""
    for kind in (pa.string(), pa.large_string()):
        try:
            return array.cast(kind)
        except pa.ArrowInvalid:  # not UTF-8, or more than strings hold
            pass
    return array


def why_unread(kind: pa.DataType) -> str:
    """Return why columns of a plain type cannot be features; empty if they can."""
    inner = kind.value_type if is_list(kind) else kind
    if pa.types.is_null(kind):
        return "no values"
    if is_text(inner) or is_bytes(inner) or is_number(inner) or (is_date(kind) and not is_list(kind)):
        return ""
    if is_list(kind):
        return f"lists of {_NESTED.get(inner.id, str(inner))}, expected lists of IDs or texts"
    if pa.types.is_temporal(kind):
        return "neither dates nor numbers; as numbers they are a dense feature"
    if kind.id in _NESTED:
        return f"{_NESTED[kind.id]}, which are not read; make columns of what they hold"
    return f"values of the type {kind}, which is not read"


_NESTED = {
    pa.struct([]).id: "structs",
    pa.map_(pa.string(), pa.string()).id: "maps",
    pa.list_(pa.int64()).id: "lists",
    pa.large_list(pa.int64()).id: "lists",
    pa.null().id: "nulls",
}
