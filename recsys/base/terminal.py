"""Output of commands on a terminal: tables, sizes, and what takes longer than a second.

Rich is imported only when needed, so that probes start fast.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable
    from rich.table import Table

# Columns at least this wide may shrink too, so that one long cell does not displace the others.
_MAX_MIN_WIDTH = 40
# The first column of a table has names, which may be broken into parts of this width.
_MIN_FIRST_WIDTH = 12


def size_text(num_bytes: float) -> str:
    """Format bytes in decimal units."""
    size = float(num_bytes)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"


@contextmanager
def announced(program: str, step: str, after_s: float = 1.0, every_s: float = 10.0) -> Iterator[None]:
    """Say on stderr what a command does where that takes longer than a second, and then that it goes on.

    Args:
        program: The name of the command.
        step: What it does, such as ``reading clicks.csv``.
        after_s: When the first line is written.
        every_s: Between later lines.
    """
    done = threading.Event()

    def speak() -> None:
        waited_s = after_s
        is_over = done.wait(after_s)
        while not is_over:
            sys.stderr.write(f"{program}: {step} ({waited_s:.0f} s)\n")
            sys.stderr.flush()
            is_over = done.wait(every_s)
            waited_s += every_s

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        done.set()
        speaker.join()


def whole_table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[int]
) -> ConsoleRenderable:
    """Return a table that is whole on a narrow terminal; cells are never read as markup.

    Where it does not fit, the first column and columns of long cells are narrower, and then the last columns go below,
    behind the first column once more.

    Args:
        title: The text above the table.
        headings: The heading of each column.
        rows: One cell for each column.
        left: The columns that are left-justified.
    """
    return _WholeTable(title, headings, rows, left)


@dataclass(frozen=True)
class _WholeTable:
    """What ``whole_table`` returns."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Collection[int]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Table]:
        from rich.cells import cell_len

        natural = [
            max(cell_len(heading), *(cell_len(row[i]) for row in self.rows), 1)
            for i, heading in enumerate(self.headings)
        ]
        first = min(natural[0], _MIN_FIRST_WIDTH)
        room = max(options.max_width - first - 1, 1)
        least = [first, *(min(width, _MAX_MIN_WIDTH, room) for width in natural[1:])]
        # Around each column: a blank on both sides, and between two of them or at an end one more.
        spacious = options.max_width - 3 * len(natural) - 1
        if sum(least) <= spacious:
            yield self._part(range(len(natural)), _shared(natural, least, spacious), 1, self.title)
            return
        title = self.title
        for part in _parts(least, options.max_width):
            widths = _shared(
                [natural[i] for i in part], [least[i] for i in part], options.max_width - len(part) + 1
            )
            yield self._part(part, widths, 0, title)
            title = "\n" + f"{self.title}, continued".removeprefix(", ")

    def _part(self, columns: Sequence[int], widths: Sequence[int], padding: int, title: str) -> Table:
        """Return some columns of the table, of the given widths."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, padding), show_edge=padding > 0
        )
        for i, width in zip(columns, widths, strict=True):
            justify: Literal["left", "right"] = "left" if i in self.left else "right"
            table.add_column(self.headings[i], justify=justify, overflow="fold", width=width)
        for row in self.rows:
            table.add_row(*(Text(row[i]) for i in columns))
        return table


def _parts(widths: Sequence[int], room: int) -> list[list[int]]:
    """Return the columns of each part of a table that is too wide, each behind the first column."""
    parts = [[0]]
    for i in range(1, len(widths)):
        part = [*parts[-1], i]
        if len(part) > 2 and sum(widths[k] + 1 for k in part) - 1 > room:
            parts.append([0, i])
        else:
            parts[-1] = part
    return parts


def _shared(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return the widths of columns: the least ones, and for those that need more an equal part of what is left."""
    widths, left = list(least), room - sum(least)
    while left > 0 and (narrow := [i for i, width in enumerate(widths) if width < natural[i]]):
        for i in narrow[:left]:
            more = min(max(left // len(narrow), 1), natural[i] - widths[i])
            widths[i] += more
            left -= more
    return widths
