"""A data set of a table's rows, described by a schema.

Shape letters: N number of examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recsys.data.examples import Bags, Dataset, Examples, Ints
from recsys.data.fingerprint import fingerprint
from recsys.data.lines import DataError, shown_names
from recsys.data.tables.as_sent import rows_as_sent
from recsys.data.tables.columns import Columns
from recsys.data.tables.crossed import crossed
from recsys.data.tables.kept_rows import kept_columns, label_blocks
from recsys.data.tables.label_scale import with_label_scales
from recsys.data.tables.quantiles import with_quantiles
from recsys.data.tables.reading.files import listed, open_files
from recsys.data.tables.reading.pieces import Piece, TableFile
from recsys.data.tables.reading.sample import common_type
from recsys.data.tables.row_use import sharing_notices
from recsys.data.tables.split import split
from recsys.data.tables.values.arrow_types import (
    is_bytes,
    is_date,
    is_encoded,
    is_list,
    is_number,
    is_text,
    plain,
    plain_table,
    plain_type,
)
from recsys.inputs.schema import Schema, TableSpec

Floats = NDArray[np.float32]

# Smaller pieces are read together, so that shuffling within a block mixes well.
_BLOCK_ROWS = 65_536


def table_dataset(data: Any, schema: Schema, limit_rows: int | None = None) -> Dataset:
    """Return the data set of a table.

    The rows to hold out are those that the schema's ``time`` puts last, or the last ones. One block of at
    least 65 536 rows, or one piece if larger, is in memory at a time.

    Args:
        data: A file, a folder of files, or a frame of pandas, polars or Arrow.
        schema: The use of each column.
        limit_rows: Number of first rows to read.

    Raises:
        DataError: Files that are missing, malformed, or lack columns; wrong types; fewer than two rows. Wrong
            values raise it when they are read.
    """
    return dataset_of(open_files(data), schema, limit_rows)


def dataset_of(files: Sequence[TableFile], schema: Schema, limit_rows: int | None = None) -> Dataset:
    """Return the data set of files that are parts of one table; see ``table_dataset``."""
    for file in files:
        _check(file, schema)
    pieces = list(_limited(listed(files), limit_rows))
    parts = split(pieces, schema)
    schema = with_label_scales(with_quantiles(schema, parts.train), parts.train)
    paths = [file.path for file in files if file.path is not None]
    return Dataset(
        name="table",
        schema=schema,
        num_train_rows=sum(map(len, parts.train)),
        num_held_out_rows=sum(map(len, parts.held_out)),
        train=partial(_blocks, parts.train, schema),
        held_out=partial(_blocks, parts.held_out, schema),
        labels=partial(label_blocks, parts.train, schema.labels) if schema.labels else None,
        reference=lambda: None,
        vocabularies=partial(_vocabularies, parts.train, schema),
        rows_as_sent=partial(rows_as_sent, parts.held_out, schema),
        fingerprint=partial(fingerprint, paths, schema.to_json()),
        notices=(
            *parts.notices,
            *_missing_notices(files, schema),
            *sharing_notices(parts.train, schema.tables),
        ),
    )


def input_pieces(data: Any, schema: Schema) -> list[Piece]:
    """Return the pieces of a table that has the columns of a model's inputs; it needs no labels.

    Raises:
        DataError: As ``table_dataset``.
    """
    files = open_files(data)
    for file in files:
        _check(file, schema, labels=False)
    return list(listed(files))


def unlabeled(
    file: TableFile, schema: Schema, keep: Sequence[str] = ()
) -> Iterator[tuple[Examples, pa.Table]]:
    """Yield the examples of a file's pieces, each with some of its columns; the table needs no labels and no weights.

    Args:
        file: The table.
        schema: The use of each column.
        keep: The columns.

    Raises:
        DataError: As ``table_dataset``.
    """
    _check(file, schema, labels=False)
    columns = list(dict.fromkeys([*schema.input_columns(), *keep]))
    # Listed first: going back in a compressed file would read it from the start each time.
    for piece in list(listed([file])):
        held = piece.reading(columns)
        read = kept_columns(held, schema.input_columns(), np.arange(held.num_rows))
        yield _examples([read], schema, labels=False), _as_in_file(held.read(keep), file)


def _as_in_file(table: pa.Table, file: TableFile) -> pa.Table:
    """Return columns without dictionaries that only reading gave them."""
    for i, field in enumerate(table.schema):
        if field.type != file.types[field.name] and is_encoded(field.type):
            table = table.set_column(i, field.name, plain(table.column(i)))
    return table


def kept_types(files: Sequence[TableFile], keep: Sequence[str]) -> dict[str, pa.DataType]:
    """Return the type of each column to keep that has several types in the files: one that takes all of them.

    Raises:
        DataError: There is none.
    """
    found = {}
    for name in keep:
        kinds = {file.types[name] for file in files}
        if len(kinds) > 1:
            plain_kinds = {plain_type(kind) for kind in kinds} - {pa.null()}
            common = next(iter(plain_kinds)) if len(plain_kinds) == 1 else common_type(plain_kinds)
            if common is None:
                raise DataError(
                    f"keep: column {name!r} is {' and '.join(sorted(map(str, kinds)))}, which go into no one column"
                )
            found[name] = common
    return found


def check_kept(files: Sequence[TableFile], keep: Sequence[str], what: str = "keep") -> None:
    """Check that files have columns that are to be kept beside a model's own.

    Raises:
        DataError: One is missing.
    """
    for file in files:
        missing = [name for name in keep if name not in file.types]
        if missing:
            raise DataError(
                f"{what}: got unknown columns {missing[:5]}, expected some of {shown_names(file.types)}"
            )


def rows_of(data: Any, schema: Schema) -> Iterator[_Rows]:
    """Yield all rows of a table, block by block, without holding any out."""
    files = open_files(data)
    for file in files:
        _check(file, schema)
        yield from _blocks(list(listed([file])), schema)


def pieces_to_measure(
    data: Any,
    schemas: Sequence[Schema],
    keep: Sequence[str] = (),
    *,
    held_out: bool = False,
    limit_rows: int | None = None,
) -> tuple[list[Piece], tuple[str, ...]]:
    """Return the pieces of a table that models with these schemas are measured on, and notices on them.

    Args:
        data: As ``table_dataset`` takes it.
        schemas: The models' own; each needs its columns, and the first one says which rows are held out.
        keep: Further columns that the table must have.
        held_out: Whether the rows to learn from are left out.
        limit_rows: Number of first rows to read.

    Raises:
        DataError: As ``table_dataset``.
    """
    files = open_files(data)
    check_kept(files, keep, "group, item, slice")
    for file in files:
        for schema in schemas:
            _check(file, schema)
    pieces = list(_limited(listed(files), limit_rows))
    if not held_out:
        return pieces, ()
    parts = split(pieces, schemas[0])
    return parts.held_out, parts.notices


def labeled(piece: Piece, schemas: Sequence[Schema], keep: Sequence[str]) -> tuple[list[Examples], pa.Table]:
    """Return the examples of a piece's kept rows for each schema, and some of its columns, read once.

    Raises:
        DataError: A value is wrong.
    """
    needed = [name for schema in schemas for name in _columns(schema, labels=True)]
    held = piece.reading(list(dict.fromkeys([*needed, *keep])))
    rows = np.arange(len(piece))
    examples = [
        _examples([kept_columns(held, _columns(schema, labels=True), rows)], schema) for schema in schemas
    ]
    return examples, plain_table(held.read(keep)).filter(pa.array(piece.mask))


def _columns(schema: Schema, *, labels: bool) -> list[str]:
    """Return the columns to read, each once."""
    return schema.columns() if labels else schema.input_columns()


def _check(file: TableFile, schema: Schema, *, labels: bool = True) -> None:
    """Check that every column exists, with a type that suits its use."""
    name_of_file = file.name
    missing = [name for name in _columns(schema, labels=labels) if name not in file.types]
    if missing:
        raise DataError(
            f"{name_of_file}: missing columns {missing[:5]}, got {shown_names(file.types)}; a schema file (--schema) "
            "names the columns"
        )

    for name in schema.label_names if labels else ():
        if pa.types.is_null(file.types[name]) and _has_rows(file):
            raise DataError(f"{name_of_file}: column {name!r}: got no values, expected a label in each row")

    def expect(name: str, good: bool, expected: str) -> None:
        kind = plain_type(file.types[name])
        # Columns without a value have no type, nor have lists that are all empty.
        if not good and not pa.types.is_null(kind.value_type if is_list(kind) else kind):
            raise DataError(f"{name_of_file}: column {name!r}: got {file.types[name]}, expected {expected}")

    for vector in {column.column for column in schema.dense if column.size}:
        kind = plain_type(file.types[vector])
        is_good = is_text(kind) or (
            is_list(kind) and (is_number(kind.value_type) or is_text(kind.value_type))
        )
        expect(vector, is_good, "lists of numbers")
    numbers = [column.name for column in schema.dense if not (column.size or column.since)]
    dates = [name for column in schema.dense if column.since for name in column.columns]
    dates += [table.date for table in schema.tables if table.date]
    for name in dates:
        kind = plain_type(file.types[name])
        is_good = is_date(kind) or is_text(kind) or is_number(kind)
        expect(name, is_good, "timestamps, dates, texts of them or numbers since 1970")
    for name in (*(schema.label_names if labels else ()), *numbers):
        kind = plain_type(file.types[name])
        expect(name, is_number(kind) or is_text(kind), "whole numbers, floats or bool")
    for table in schema.tables:
        for name in () if table.date else table.columns:
            kind = plain_type(file.types[name])
            inner = kind.value_type if is_list(kind) else kind
            is_number_kind = is_number(inner) and not (table.strings and pa.types.is_floating(inner))
            expected = "texts or lists of them" if table.strings else "int64 or list<int64>"
            is_hashed = bool(table.strings) and is_bytes(inner)
            expect(name, is_text(inner) or is_number_kind or is_hashed, expected)


def _missing_notices(files: Sequence[TableFile], schema: Schema) -> Iterator[str]:
    """Yield a line for each input that some files of a table have no values of."""
    for name in schema.input_columns():
        without = [file for file in files if pa.types.is_null(file.types[name]) and _has_rows(file)]
        if without:
            others = f" and {len(without) - 1} others have" if len(without) > 1 else " has"
            yield f"column {name!r}: {without[0].name}{others} no values of it: they are missing there"


def _has_rows(file: TableFile) -> bool:
    return next(file.pieces(), None) is not None


def _limited(pieces: Iterator[Piece], limit: int | None) -> Iterator[Piece]:
    left = limit
    for piece in pieces:
        if left is None or piece.num_rows <= left:
            yield piece
        elif left:
            yield piece.keeping(np.arange(piece.num_rows) < left)
        if left is not None:
            left = max(0, left - piece.num_rows)
            if not left:
                return


def _vocabularies(train: Sequence[Piece], schema: Schema) -> dict[str, Ints]:
    """Return the most frequent IDs of each table with a vocabulary, the most frequent first."""
    tables = [table for table in schema.tables if table.ids == "vocabulary"]
    counts: dict[str, Counter[int]] = {table.name: Counter() for table in tables}
    columns = [name for table in tables for name in table.feature_names]
    for piece in train if tables else ():
        read = Columns(piece.read(columns), piece.place)
        kept = np.flatnonzero(piece.mask)
        for table in tables:
            for name in table.feature_names:
                ids, number = np.unique(read.bags(name, table).take(kept).values, return_counts=True)
                counts[table.name].update(dict(zip(ids.tolist(), number.tolist(), strict=True)))
    return {table.name: _most_frequent(counts[table.name], table) for table in tables}


def _most_frequent(counts: Counter[int], table: TableSpec) -> Ints:
    found = [(-count, i) for i, count in counts.items() if count >= table.min_count]
    return np.array([i for _, i in sorted(found)[: table.num_embeddings - 1]], dtype=np.int64)


def _blocks(pieces: Sequence[Piece], schema: Schema) -> Iterator[_Rows]:
    waiting: list[Piece] = []
    for piece in pieces:
        waiting.append(piece)
        if sum(map(len, waiting)) >= _BLOCK_ROWS:
            yield _Rows(waiting, schema)
            waiting = []
    if waiting:
        yield _Rows(waiting, schema)


class _Rows:
    """A block: nothing is read before rows are taken."""

    def __init__(self, pieces: list[Piece], schema: Schema) -> None:
        self._pieces = pieces
        self._schema = schema
        self._starts = np.cumsum([0, *map(len, pieces)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, rows: Ints) -> Examples:
        """Return the given examples, in that order."""
        order = np.argsort(rows, kind="stable")
        in_order = rows[order]
        bounds = np.searchsorted(in_order, self._starts)
        columns = _columns(self._schema, labels=True)
        parts = [
            kept_columns(piece, columns, in_order[a:b] - start)
            for piece, start, a, b in zip(
                self._pieces, self._starts[:-1], bounds[:-1], bounds[1:], strict=True
            )
            if a < b or len(self._pieces) == 1
        ] or [kept_columns(self._pieces[0], columns, in_order)]
        where = np.empty_like(order)
        where[order] = np.arange(len(order))
        return _examples(parts, self._schema, where)


def _examples(
    parts: Sequence[Columns], schema: Schema, rows: Ints | None = None, *, labels: bool = True
) -> Examples:
    """Return the given rows of all parts, in that order; None for all, in the order of the parts.

    Columns are put in order one after the other, so that the examples are in memory once.
    """
    num_rows = sum(part.num_rows for part in parts) if rows is None else len(rows)

    def column(read: Callable[[Columns], Floats]) -> Floats:
        values = np.concatenate([read(part) for part in parts])
        return values if rows is None else values[rows]

    def floats(reads: Sequence[Callable[[Columns], Floats]]) -> Floats:
        found = np.empty((num_rows, len(reads)), dtype=np.float32)
        for i, read in enumerate(reads):
            found[:, i] = column(read)
        return found

    def placed(bags: Sequence[Bags]) -> Bags:
        found = Bags.concatenate(bags)
        return found if rows is None else found.take(rows)

    def bags(name: str, table: TableSpec) -> Bags:
        return placed([part.bags(name, table) for part in parts])

    return Examples(
        dense=floats([partial(Columns.dense, column=spec) for spec in schema.dense]),
        bags={
            **{name: bags(name, table) for table in schema.tables for name in table.feature_names},
            **{
                cross.name: placed([crossed(part, cross, schema.tables) for part in parts])
                for cross in schema.crosses
            },
        },
        labels=floats([partial(Columns.label, label=spec) for spec in schema.labels] if labels else []),
        weights=column(partial(Columns.weight, name=schema.weight))
        if labels and schema.weight is not None
        else None,
    )
