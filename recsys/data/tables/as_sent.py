"""Rows of a table as clients send them: texts are not hashed, and IDs are not taken modulo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from recsys.data.example_rows import columns_of_dense, lists_of
from recsys.data.examples import Ints
from recsys.data.tables.columns import Columns
from recsys.data.tables.reading.pieces import Piece
from recsys.data.tables.values.arrow_types import plain_table
from recsys.inputs.columns import RAW, TableSpec
from recsys.inputs.example_rows import ExampleRows
from recsys.inputs.schema import Schema

# Rows come from several places of the table, as long as they are read in a moment.
_MOST_PIECES = 4
_MOST_READ_ROWS = 1 << 18


def rows_as_sent(pieces: Sequence[Piece], schema: Schema, num_rows: int) -> ExampleRows:
    """Return rows from several places of the pieces.

    Args:
        pieces: Not empty.
        schema: The use of each column.
        num_rows: The number of rows; there may be fewer.

    Raises:
        DataError: A value is wrong.
    """
    chosen = _spread(pieces)
    parts = [_part(piece, schema, -(-num_rows // len(chosen))) for piece in chosen]
    return ExampleRows(
        num_rows=sum(part.num_rows for part in parts),
        dense={name: [value for part in parts for value in part.dense[name]] for name in parts[0].dense},
        sparse={name: [bag for part in parts for bag in part.sparse[name]] for name in parts[0].sparse},
    ).first(num_rows)


def _spread(pieces: Sequence[Piece]) -> list[Piece]:
    """Return some pieces from the first to the last; one alone where they are large."""
    places = np.unique(np.linspace(0, len(pieces) - 1, _MOST_PIECES).astype(int))
    chosen: list[Piece] = []
    num_read = 0
    for place in places.tolist():
        num_read += pieces[place].num_rows
        if chosen and num_read > _MOST_READ_ROWS:
            break
        chosen.append(pieces[place])
    return chosen


def _part(piece: Piece, schema: Schema, num_rows: int) -> ExampleRows:
    kept = np.flatnonzero(piece.mask)
    places: Ints = kept[np.unique(np.linspace(0, len(kept) - 1, num_rows).astype(np.int64))]
    table = plain_table(piece.read(schema.input_columns())).take(places)
    columns = Columns(table, lambda row: piece.place(int(places[row])))
    sparse: dict[str, list[list[int] | list[str]]] = {}
    for spec in schema.tables:
        raw = spec if spec.ids == "index" else replace(spec, ids=RAW)
        for name in spec.feature_names:
            texts = _texts(columns, name, spec)
            sparse[name] = lists_of(columns.bags(name, raw)) if texts is None else [*texts]
    dense = {column.name: columns.dense(column) for column in schema.dense}
    return ExampleRows(num_rows=len(places), dense=columns_of_dense(dense), sparse=sparse)


def _texts(columns: Columns, name: str, spec: TableSpec) -> list[list[str]] | None:
    """Return the texts of a hashed feature; None for IDs, and for bytes that are not UTF-8."""
    if not spec.strings:
        return None
    try:
        return columns.texts(name, spec)
    except pa.ArrowInvalid:
        return None
