"""The Criteo display advertising data: a label, 13 whole numbers, 26 categories a line.

Reads the two common forms: the TSV as published (no header,
https://www.kaggle.com/c/criteo-display-ad-challenge) and CSV with the header ``label,I1..I13,C1..C26``.
Fields may be empty.

Shape letters: N number of examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.examples import Dataset
from recsys.data.lines import DataError
from recsys.data.tables.dataset import dataset_of
from recsys.data.tables.reading.byte_stream import ByteStream
from recsys.data.tables.reading.headers import Header, separator_of
from recsys.data.tables.reading.pieces import Piece
from recsys.data.tables.text_file import TextFile
from recsys.data.tables.values.arrow_types import plain
from recsys.data.tables.values.conversions import OddValue, ids_of
from recsys.inputs.schema import DenseColumn, LabelColumn, Schema, TableSpec

DENSE_NAMES = tuple(f"I{i}" for i in range(1, 14))
SPARSE_NAMES = tuple(f"C{i}" for i in range(1, 27))
_NAMES = ("label", *DENSE_NAMES, *SPARSE_NAMES)
_HEADER_BYTES = 1 << 16


def criteo(path: Path, hash_rows: int = 100_000, limit_rows: int | None = None) -> Dataset:
    """Return the data set of one file, compressed or not.

    A whole number ``x`` becomes ``log(1 + max(x, 0))``, 0 where the field is empty. A category, 8 hexadecimal
    digits, becomes the ID ``int(category, 16) % hash_rows`` of its own table, an empty bag where the field is
    empty. The last 10 % of the lines, which are in the order of time, are held out.

    Args:
        path: The file.
        hash_rows: Rows of each of the 26 tables.
        limit_rows: Read at most this many lines.

    Raises:
        DataError: The file is missing or not Criteo's, a line has another number of fields, a value of the first lines
            is wrong, or there are fewer than two lines of data. Other wrong values raise it when they are read.
        ValueError: ``hash_rows`` is below 1.
    """
    if hash_rows < 1:
        raise ValueError(f"hash_rows: got {hash_rows}, expected at least 1")
    if path.is_dir():
        raise DataError(f"{path.name}: got a folder, expected a file")
    file = _CriteoFile(path)
    schema = Schema(
        labels=(LabelColumn(name="label"),),
        dense=tuple(DenseColumn(name=name) for name in DENSE_NAMES),
        tables=tuple(
            TableSpec(name=name, num_embeddings=hash_rows, feature_names=(name,), ids="hash")
            for name in SPARSE_NAMES
        ),
    )
    dataset = dataset_of([file], schema, limit_rows)
    # A file of another kind is refused before the training begins.
    next(dataset.train()).take(np.arange(1))
    # Clients send what the model takes, and cannot choose how IDs become rows.
    return replace(dataset, name="criteo", rows_as_sent=None)


class _CriteoFile(TextFile):
    """A file whose numbers and categories are converted as they are read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, header=_header(path))
        self.types = {
            "label": pa.string(),
            **dict.fromkeys(DENSE_NAMES, pa.float64()),
            **dict.fromkeys(SPARSE_NAMES, pa.int64()),
        }

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces in order."""
        for piece in super().pieces():
            yield replace(piece, read=partial(_converted, piece))


def _header(path: Path) -> Header:
    """Return the columns and their separator.

    Raises:
        DataError: The first line is not Criteo's.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    first = ByteStream(path).at(0, _HEADER_BYTES).splitlines(keepends=True)[:1]
    line = first[0].decode("utf-8-sig", "replace").rstrip("\r\n") if first else ""
    for separator in "\t,":
        if line.split(separator) == [*_NAMES]:
            return Header(names=_NAMES, separator=separator, num_bytes=len(first[0]))
    if line.count("\t") == len(_NAMES) - 1:
        return Header(names=_NAMES, separator="\t")
    found = separator_of(line)
    raise DataError(
        f"{path.name}, line 1: got {len(line.split(found))} fields separated by {found!r}, expected the header "
        f"label,I1,...,C26, or Criteo's {len(_NAMES)} fields (label, I1-I13, C1-C26) separated by tabs; "
        "--data PATH takes tables of other columns"
    )


def _converted(piece: Piece, names: Sequence[str]) -> pa.Table:
    table = piece.read(names)
    for i, name in enumerate(names):
        convert = _checked_labels if name == "label" else _log_numbers if name in DENSE_NAMES else _ids
        table = table.set_column(i, name, convert(piece, name, plain(table.column(i))))
    return table


def _checked_labels(piece: Piece, name: str, texts: pa.Array) -> pa.Array:
    _check(piece, name, texts, pc.fill_null(pc.match_substring_regex(texts, "^[01]$"), False), "0 or 1")
    return texts


def _log_numbers(piece: Piece, name: str, texts: pa.Array) -> pa.Array:
    """Return the logarithms of whole numbers, float64 ``[N]``; 0 for missing ones."""
    # Data frames write integer columns with gaps as floats, such as "260.0".
    numbers = ids_of(pc.fill_null(texts, "0"))
    if isinstance(numbers, OddValue):
        raise _wrong(piece, numbers.position, name, texts, "a whole number or nothing")
    return pa.array(np.log1p(np.maximum(numbers, 0)))


def _ids(piece: Piece, name: str, texts: pa.Array) -> pa.Array:
    """Return the 32 bits of categories, int64 ``[N]``; null for missing ones."""
    is_right = pc.match_substring_regex(texts, "^[0-9a-fA-F]{8}$")
    _check(piece, name, texts, pc.fill_null(is_right, True), "8 hexadecimal digits or nothing")
    return pc.binary_join_element_wise("0x", texts, "").cast(pa.int64())


def _check(piece: Piece, name: str, texts: pa.Array, is_right: pa.Array, expected: str) -> None:
    row = pc.index(is_right, False).as_py()
    if row >= 0:
        raise _wrong(piece, row, name, texts, expected)


def _wrong(piece: Piece, row: int, name: str, texts: pa.Array, expected: str) -> DataError:
    got = texts[row].as_py() or ""
    return DataError(f"{piece.place(row)}: {name}: got {got[:40]!r}, expected {expected}")
