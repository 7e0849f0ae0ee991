"""Tables and numbers for people at a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

# A column as wide as that gives way too, so that one long cell does not push the others out.
_MOST_MIN_WIDTH = 40


def whole_table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[int]
) -> Table:
    """A table whose first column gives way where the terminal is narrow; cells are never read as markup.

    Args:
        title: above it.
        headings: of the columns.
        rows: a cell for each column.
        left: the columns that are not flush right.
    """
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for i, heading in enumerate(headings):
        width = max(len(heading), *(len(row[i]) for row in rows), 0)
        table.add_column(
            heading,
            justify="left" if i in left else "right",
            overflow="fold",
            min_width=None if i == 0 else min(width, _MOST_MIN_WIDTH),
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def size_text(num_bytes: float) -> str:
    """Bytes, in decimal units."""
    size = float(num_bytes)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"
