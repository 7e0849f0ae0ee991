"""Results as tables, and progress while they are measured."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track
from rich.table import Table

T = TypeVar("T")


def table_of(
    title: str, rows: Iterable[Mapping[str, str]], *, texts: Collection[str] = (), sections: str | None = None
) -> Table:
    """Return rows as a table.

    Args:
        title: stands above it.
        rows: the cells by heading, each row with the same headings.
        texts: headings of the columns that hold words; the first one by default. Others hold numbers.
        sections: a heading; a line separates rows that differ in its column.
    """
    table = Table(title=title, title_justify="left")
    last: Mapping[str, str] | None = None
    for row in rows:
        if last is None:
            left = texts or list(row)[:1]
            for heading in row:
                table.add_column(heading, justify="left" if heading in left else "right", overflow="fold")
        elif sections is not None and row[sections] != last[sections]:
            table.add_section()
        table.add_row(*row.values())
        last = row
    return table


def tracked(items: Sequence[T], what: str) -> Iterable[T]:
    """Yield the items under a progress bar, where standard error is a terminal."""
    return track(items, what, console=Console(stderr=True), disable=not sys.stderr.isatty())
