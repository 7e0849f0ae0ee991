"""Pieces: consecutive rows of a table, which are read when they are needed.

Shape letters: N number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from recsys.data.lines import DataError


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Consecutive rows of a file or a frame.

    Attributes:
        num_rows: N.
        read: Returns the given columns of the rows, in that order.
        place: Returns the place of a row, for messages.
        kept: bool ``[N]``, the rows that belong to the data set; None for all.
        share: How much of the file lies before the end of the piece, 0 to 1.
    """

    num_rows: int
    read: Callable[[Sequence[str]], pa.Table]
    place: Callable[[int], str]
    kept: NDArray[np.bool_] | None = None
    share: float = 1.0

    def __len__(self) -> int:
        """Return the number of kept rows."""
        return self.num_rows if self.kept is None else int(self.kept.sum())

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Return whether each row belongs to the data set."""
        return np.ones(self.num_rows, dtype=bool) if self.kept is None else self.kept

    def reading(self, columns: Sequence[str]) -> Piece:
        """Return the piece with these columns in memory, which its file is read for once."""
        return replace(self, read=partial(_selected, self.read(columns)))

    def keeping(self, rows: NDArray[np.bool_]) -> Piece:
        """Return the piece with only some of its kept rows."""
        return replace(self, kept=rows if self.kept is None else self.kept & rows)


class TableFile(Protocol):
    """A file, or a frame."""

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The columns' types by name."""

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces in order."""


class ParquetFile:
    """One Parquet file; a piece is a row group.

    Attributes:
        types: The columns' types by name.

    Raises:
        DataError: It is not a Parquet file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with parquet.ParquetFile(path) as file:
                self.types: dict[str, pa.DataType] = {field.name: field.type for field in file.schema_arrow}
                self._num_rows = [
                    file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)
                ]
        except pa.ArrowException as error:
            raise DataError(f"{path.name}: not a Parquet file ({str(error)[:120]})") from None

    def pieces(self) -> Iterator[Piece]:
        """Yield a piece per row group that is not empty."""
        first = 0
        for number, num_rows in enumerate(self._num_rows):
            if num_rows:
                place = partial(self._place, first)
                yield Piece(num_rows=num_rows, read=partial(self._read, number), place=place)
            first += num_rows

    def _place(self, first: int, row: int) -> str:
        return f"{self.path.name}, row {first + row}"

    def _read(self, row_group: int, columns: Sequence[str]) -> pa.Table:
        try:
            with parquet.ParquetFile(self.path) as file:
                return file.read_row_group(row_group, columns=list(columns))
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{self.path.name}, row group {row_group}: cannot be read ({str(error)[:120]})"
            ) from None


class Frame:
    """A pandas, polars or Arrow frame: anything that ``pyarrow.table`` takes.

    Attributes:
        types: The columns' types by name.

    Raises:
        DataError: It is something else.
    """

    _PIECE_ROWS = 65_536

    def __init__(self, frame: Any) -> None:
        try:
            self._table = frame if isinstance(frame, pa.Table) else pa.table(frame)
        except (TypeError, ValueError, pa.ArrowException) as error:
            raise DataError(
                f"data: got {type(frame).__name__}, expected a path, or a frame of pandas, polars or Arrow "
                f"({str(error)[:80]})"
            ) from None
        self.types: dict[str, pa.DataType] = {field.name: field.type for field in self._table.schema}

    def pieces(self) -> Iterator[Piece]:
        """Yield the rows, some at a time."""
        for first in range(0, self._table.num_rows, self._PIECE_ROWS):
            part = self._table.slice(first, self._PIECE_ROWS)
            yield Piece(num_rows=part.num_rows, read=partial(_selected, part), place=partial(_row, first))


def _selected(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    return table.select(list(columns))


def _row(first: int, row: int) -> str:
    return f"data, row {first + row}"
