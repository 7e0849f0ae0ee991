"""A sample of a table's rows, from all of its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from recsys.data.lines import DataError, shown_error
from recsys.data.progress import shown
from recsys.data.tables.reading.arrow_files import ArrowFile
from recsys.data.tables.reading.pieces import Piece, TableFile
from recsys.data.tables.values.arrow_types import plain_table

# Files share the sample as if there were no more of them; more are read if these have too few rows.
_NUM_SHARES = 16
_NUM_PARTS = 4


def sample_rows(files: Sequence[TableFile], num_rows: int) -> pa.Table:
    """Return up to ``num_rows`` rows of files that are spread over all of them, in their order.

    Text files give their first rows, files of columns rows of several parts. Columns that only some files have are null
    in the others.

    Raises:
        DataError: There are no rows, a file cannot be read, or a column has types that do not go together.
    """
    share = -(-num_rows // min(len(files), _NUM_SHARES))
    parts: dict[int, pa.Table] = {}
    left = num_rows
    with shown("sampling") as update:
        for number in _spread(len(files)):
            table = _first_rows(files[number], min(share, left))
            if table is not None:
                parts[number] = table
                left -= table.num_rows
            update(1 - left / num_rows, f"{num_rows - left:,} rows")
            if not left:
                break
    if not parts:
        raise DataError("data: got no rows, expected at least 2")
    tables = [parts[number] for number in sorted(parts)]
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            f"data: the files have columns of one name and other types ({shown_error(error)})"
        ) from None


def _spread(number: int) -> Iterator[int]:
    """Yield the numbers below ``number``: the first, the last, those half way between, and so on."""
    step = max(number - 1, 1)
    seen: set[int] = set()
    while len(seen) < number:
        for place in [*range(0, number, step), number - 1]:
            if place not in seen:
                seen.add(place)
                yield place
        step = max(step // 2, 1)


def _first_rows(file: TableFile, num_rows: int) -> pa.Table | None:
    pieces: Iterator[Piece] = file.pieces()
    if isinstance(file, ArrowFile):
        listed = list(pieces)
        share = -(-num_rows // min(len(listed), _NUM_PARTS)) if listed else 0
        pieces = (listed[place] for place in _spread(len(listed)))
    else:
        share = num_rows
    parts, left = [], num_rows
    for piece in pieces:
        if not left:
            break
        part = plain_table(piece.read(list(file.types)).slice(0, min(share, left)))
        parts.append(part)
        left -= part.num_rows
    return pa.concat_tables(parts, promote_options="permissive") if parts else None
