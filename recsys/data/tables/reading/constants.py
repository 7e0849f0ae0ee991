"""Files with columns that are not part of their content: one value for all rows of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from recsys.data.tables.reading.pieces import Piece, TableFile


class WithConstants(TableFile):
    """A file and some columns more.

    Args:
        file: The file.
        values: The columns' values by name; columns of the file itself go before them.
    """

    def __init__(self, file: TableFile, values: Mapping[str, pa.Scalar]) -> None:
        self.file = file
        self.path, self.name, self.kinds = file.path, file.name, file.kinds
        self._values = {name: value for name, value in values.items() if name not in file.types}
        self.types = {**file.types, **{name: value.type for name, value in self._values.items()}}

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces in order."""
        for piece in self.file.pieces():
            yield replace(piece, read=partial(self._read, piece))

    def sample(self, num_rows: int) -> list[pa.Table]:
        """Return some rows."""
        columns = list(self.types)
        return [self._with_values(part, part.num_rows, columns) for part in self.file.sample(num_rows)]

    def _read(self, piece: Piece, columns: Sequence[str]) -> pa.Table:
        own = [name for name in columns if name not in self._values]
        return self._with_values(piece.read(own) if own else None, piece.num_rows, columns)

    def _with_values(self, table: pa.Table | None, num_rows: int, columns: Sequence[str]) -> pa.Table:
        arrays = [
            pa.repeat(self._values[name], num_rows)
            if table is None or name in self._values
            else table.column(name)
            for name in columns
        ]
        return pa.table(arrays, names=list(columns))


def as_one_table(files: Sequence[TableFile]) -> list[TableFile]:
    """Return files that are parts of one table, all with the same columns: those that one lacks are null in it."""
    names = dict.fromkeys(name for file in files for name in file.types)
    missing = pa.scalar(None)
    return [
        file if len(file.types) == len(names) else WithConstants(file, dict.fromkeys(names, missing))
        for file in files
    ]
