"""Parquet files (pyarrow) as a stream of examples, some row groups at a time.

| use | column types | null |
|---|---|---|
| label | whole number, float or bool: 0 or 1 | an error |
| dense | whole number, float or bool; finite | an error |
| sparse | int64 or a narrower whole number, or a list of them | no ID: an empty bag; within a list an error |

Shape letters: N number of examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from recsys.train.data.examples import Dataset, Examples, Ints, TableSpec, held_out_rows
from recsys.train.data.lines import DataError
from recsys.train.data.parquet_columns import Columns, is_list, is_number, is_whole, load_pyarrow
from recsys.train.data.schema import Schema

# Smaller row groups are read together, so that shuffling within a block mixes well.
_BLOCK_ROWS = 65_536
_SUFFIXES = (".parquet", ".pq")


def parquet(
    path: Path, schema: Schema | None = None, hash_rows: int = 100_000, limit_rows: int | None = None
) -> Dataset:
    """Return the data set of one file, or of a folder's ``*.parquet`` and ``*.pq`` files in the order of their names.

    Rows are assumed to be in order of time: the last 10 % are held out. One block of at least 65 536 rows, or
    one row group if larger, is in memory at a time.

    Args:
        path: The file or folder.
        schema: The use of each column. None infers it: ``label`` is the label, columns of floats are dense,
            columns of int64 and lists of int64 are sparse, each with a hashed SUM table of its own, and
            columns of any other type are an error.
        hash_rows: Rows of inferred tables.
        limit_rows: Number of first rows to read.

    Raises:
        DataError: No pyarrow; files that are missing, not Parquet, or lack columns; wrong types; fewer than two rows.
            Wrong values raise it when they are read.
        ValueError: ``hash_rows`` is below 1.
    """
    if hash_rows < 1:
        raise ValueError(f"hash_rows: got {hash_rows}, expected at least 1")
    files = [_File(file) for file in _paths(path)]
    if schema is None:
        schema = _inferred(files[0], hash_rows)
    for file in files:
        file.check(schema)
    pieces = [piece for file in files for piece in file.pieces()]
    num_rows = sum(piece.num_rows for piece in pieces)
    num_rows = num_rows if limit_rows is None else min(num_rows, limit_rows)
    if num_rows < 2:
        raise DataError(f"{path.name}: got {num_rows} rows, expected at least 2")
    num_train = num_rows - held_out_rows(num_rows)
    return Dataset(
        name="parquet",
        dense_names=schema.dense,
        tables=schema.tables,
        num_train_rows=num_train,
        num_held_out_rows=num_rows - num_train,
        train=partial(_blocks, _cut(pieces, 0, num_train), schema),
        held_out=partial(_blocks, _cut(pieces, num_train, num_rows), schema),
        reference=lambda: None,
    )


def _paths(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file())
        if not found:
            raise DataError(f"{path}: got no files that end in {' or '.join(_SUFFIXES)}")
        return found
    if not path.is_file():
        raise DataError(f"{path}: there is no such file or folder")
    return [path]


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """Rows of one row group: those from ``first`` on, ``num_rows`` of them."""

    path: Path
    row_group: int
    first: int
    num_rows: int
    first_in_file: int  # the row group's first row, for messages


class _File:
    """A file's footer."""

    def __init__(self, path: Path) -> None:
        pa = load_pyarrow()
        self.path = path
        try:
            with pa.parquet.ParquetFile(path) as file:
                self.types = {field.name: field.type for field in file.schema_arrow}
                self._num_rows = [
                    file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)
                ]
        except pa.ArrowException as error:
            raise DataError(f"{path.name}: not a Parquet file ({str(error)[:120]})") from None

    def pieces(self) -> list[_Piece]:
        starts = np.cumsum([0, *self._num_rows]).tolist()
        return [
            _Piece(path=self.path, row_group=i, first=0, num_rows=num_rows, first_in_file=starts[i])
            for i, num_rows in enumerate(self._num_rows)
            if num_rows
        ]

    def check(self, schema: Schema) -> None:
        """Check that every column exists, with a type that suits its use."""
        missing = [name for name in schema.columns() if name not in self.types]
        if missing:
            raise DataError(
                f"{self.path.name}: missing columns {missing[:5]}, got {list(self.types)[:20]}; a schema file "
                "(--schema) names the columns"
            )
        sparse = [name for table in schema.tables for name in table.feature_names]
        for name in schema.columns():
            kind = self.types[name]
            if name in sparse and not (is_whole(kind) or (is_list(kind) and is_whole(kind.value_type))):
                raise self._wrong_type(name, "int64 or list<int64>")
            if name not in sparse and not is_number(kind):
                raise self._wrong_type(name, "whole numbers, floats or bool")

    def _wrong_type(self, name: str, expected: str) -> DataError:
        return DataError(f"{self.path.name}: column {name!r}: got {self.types[name]}, expected {expected}")


def _inferred(file: _File, hash_rows: int) -> Schema:
    types = load_pyarrow().types
    dense, sparse = [], []
    for name, kind in file.types.items():
        if name == "label":
            continue
        if types.is_floating(kind):
            dense.append(name)
        elif types.is_int64(kind) or (is_list(kind) and types.is_int64(kind.value_type)):
            sparse.append(name)
        else:
            raise DataError(
                f"{file.path.name}: column {name!r} of type {kind} may be anything; a schema file (--schema) "
                "names the columns to read"
            )
    if "label" not in file.types or not dense or not sparse:
        raise DataError(
            f"{file.path.name}: got columns {list(file.types)[:20]}, expected a column 'label', at least one of "
            "floats and one of int64 or list<int64>; or a schema file (--schema)"
        )
    tables = [
        TableSpec(name=name.replace(".", "_"), num_embeddings=hash_rows, feature_names=(name,))
        for name in sparse
    ]
    return Schema(
        label="label",
        dense=tuple(dense),
        tables=tuple(tables),
        hashed_tables=frozenset(table.name for table in tables),
    )


def _cut(pieces: Sequence[_Piece], first: int, end: int) -> list[_Piece]:
    """Return the rows ``first <= row < end`` of all pieces' rows."""
    found: list[_Piece] = []
    start = 0
    for piece in pieces:
        a, b = max(first - start, 0), min(end - start, piece.num_rows)
        if a < b:
            found.append(
                _Piece(
                    path=piece.path,
                    row_group=piece.row_group,
                    first=a,
                    num_rows=b - a,
                    first_in_file=piece.first_in_file,
                )
            )
        start += piece.num_rows
    return found


def _blocks(pieces: Sequence[_Piece], schema: Schema) -> Iterator[_RowGroups]:
    waiting: list[_Piece] = []
    for piece in pieces:
        waiting.append(piece)
        if sum(p.num_rows for p in waiting) >= _BLOCK_ROWS:
            yield _RowGroups(waiting, schema)
            waiting = []
    if waiting:
        yield _RowGroups(waiting, schema)


class _RowGroups:
    """A block: nothing is read before rows are taken."""

    def __init__(self, pieces: list[_Piece], schema: Schema) -> None:
        self._pieces = pieces
        self._schema = schema
        self._starts = np.cumsum([0, *(piece.num_rows for piece in pieces)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, rows: Ints) -> Examples:
        order = np.argsort(rows, kind="stable")
        in_order = rows[order]
        bounds = np.searchsorted(in_order, self._starts)
        parts = [
            _read(piece, self._schema, in_order[a:b] - start + piece.first)
            for piece, start, a, b in zip(
                self._pieces, self._starts[:-1], bounds[:-1], bounds[1:], strict=True
            )
        ]
        where = np.empty_like(order)
        where[order] = np.arange(len(order))
        return Examples.concatenate(parts).take(where)


def _read(piece: _Piece, schema: Schema, rows: Ints) -> Examples:
    pa = load_pyarrow()
    try:
        with pa.parquet.ParquetFile(piece.path) as file:
            table = file.read_row_group(piece.row_group, columns=schema.columns()).take(pa.array(rows))
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{piece.path.name}, row group {piece.row_group}: cannot be read ({str(error)[:120]})"
        ) from None
    reader = Columns(table, piece.path, rows + piece.first_in_file)
    return Examples(
        dense=np.stack([reader.dense(name) for name in schema.dense], axis=1),
        bags={
            name: reader.bags(name, spec, hashed=spec.name in schema.hashed_tables)
            for spec in schema.tables
            for name in spec.feature_names
        },
        labels=reader.labels(schema.label),
    )
