"""Rows of any table as clients send them."""

from __future__ import annotations

from pathlib import Path

from recsys.data.lines import DataError
from recsys.data.tables.as_sent import rows_as_sent
from recsys.data.tables.dataset import input_pieces
from recsys.inputs.example_rows import ExampleRows
from recsys.inputs.schema import Schema

_MOST_BLANKS = 4096


def is_table(path: Path) -> bool:
    """Return whether a path is a folder, or a file that does not begin as requests in JSON do."""
    if path.is_dir():
        return True
    with path.open("rb") as file:
        return not file.read(_MOST_BLANKS).lstrip().startswith(b"{")


def rows_of_table(path: Path, schema: Schema, num_rows: int) -> ExampleRows:
    """Return rows from several places of a table, which needs no labels.

    Raises:
        DataError: The table is missing, malformed, lacks columns or has no rows, or a value is wrong.
    """
    pieces = input_pieces(path, schema)
    if not pieces:
        raise DataError(f"{path.name}: got no rows, expected at least one")
    return rows_as_sent(pieces, schema, num_rows)
