"""Pieces: consecutive rows of a table, which are read when they are needed.

Shape letters: N number of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recsys.data.lines import DataError, shown_error, shown_names


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Consecutive rows of a file or a frame.

    Attributes:
        num_rows: N.
        read: Returns the given columns of the rows, in that order. Texts may be encoded with a dictionary.
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


class TableFile:
    """A file, or a frame.

    Attributes:
        path: The file; None for a frame.
        name: The file's name in messages.
        types: The columns' types by name.
        kinds: What the file's header says of columns besides their names, by name.
    """

    path: Path | None
    name: str
    types: dict[str, pa.DataType]
    kinds: Mapping[str, str] = MappingProxyType({})

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces in order."""
        raise NotImplementedError

    def sample(self, num_rows: int) -> list[pa.Table]:
        """Return up to ``num_rows`` rows, tables of consecutive ones: the first rows, unless overridden."""
        return first_rows((piece.read(list(self.types)) for piece in self.pieces()), num_rows)


def first_rows(tables: Iterable[pa.Table], num_rows: int) -> list[pa.Table]:
    """Return the first rows of tables, those without rows left out."""
    parts: list[pa.Table] = []
    left = num_rows
    for table in tables:
        if table.num_rows:
            parts.append(table.slice(0, left))
            left -= parts[-1].num_rows
        if not left:
            break
    return parts


def spread(number: int) -> Iterator[int]:
    """Yield the numbers below ``number``: the first, the last, those half way between, and so on."""
    step = max(number - 1, 1)
    seen: set[int] = set()
    while len(seen) < number:
        for place in [*range(0, number, step), number - 1]:
            if place not in seen:
                seen.add(place)
                yield place
        step = max(step // 2, 1)


def types_of(schema: pa.Schema, name: str) -> dict[str, pa.DataType]:
    """Return the columns' types by name.

    Raises:
        DataError: Two columns have one name.
    """
    doubled = [column for column, count in Counter(schema.names).items() if count > 1]
    if doubled:
        raise DataError(f"{name}: column {shown_names(doubled[:1])} is named more than once")
    return {field.name: field.type for field in schema}


class Frame(TableFile):
    """A pandas, polars or Arrow frame: anything that ``pyarrow.table`` takes.

    Raises:
        DataError: It is something else.

    Attributes:
        table: The frame's rows.
    """

    path = None
    name = "data"
    _PIECE_ROWS = 65_536

    def __init__(self, frame: Any) -> None:
        try:
            self.table = frame if isinstance(frame, pa.Table) else pa.table(frame)
        except (TypeError, ValueError, pa.ArrowException) as error:
            raise DataError(
                f"data: got {type(frame).__name__}, expected a path, or a frame of pandas, polars or Arrow "
                f"({shown_error(error)})"
            ) from None
        self.types = types_of(self.table.schema, self.name)

    def pieces(self) -> Iterator[Piece]:
        """Yield the rows, some at a time."""
        for first in range(0, self.table.num_rows, self._PIECE_ROWS):
            part = self.table.slice(first, self._PIECE_ROWS)
            yield Piece(num_rows=part.num_rows, read=partial(_selected, part), place=partial(_row, first))


def _selected(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    return table.select(list(columns))


def _row(first: int, row: int) -> str:
    return f"data, row {first + row}"
