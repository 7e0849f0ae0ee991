"""Where rows of separated text begin and end, read as Arrow and Python's ``csv`` read it.

A quote opens a quoted field only as the field's first character; within it two quotes stand for one. All other
quotes are text. Rows end with LF, CR or CR LF outside of quoted fields, and empty ones are left out.

Shape letters: N number of rows, Q number of quotes that open or close a field.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from recsys.data.examples import Ints

_QUOTE, _LF, _CR = b'"'[0], b"\n"[0], b"\r"[0]
# Bytes that are looked at together: few enough for the processor's caches.
_WINDOW = 1 << 18


class CsvRows:
    """The rows of a text that begins with one.

    Args:
        data: The text.
        separator: Between fields, one byte.
    """

    def __init__(self, data: bytes, separator: str) -> None:
        self.data = data
        self._separator = ord(separator)

    @cached_property
    def _bytes(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.data, dtype=np.uint8)

    @cached_property
    def _num_plain_quotes(self) -> int | None:
        """The number of quotes if they are as programs write them; None otherwise.

        They open and close fields in turn, at the fields' ends, and doubled ones within; the last field may be open.
        """
        if b'"' not in self.data:
            return 0
        edges = np.zeros(256, dtype=bool)
        edges[[self._separator, _LF, _CR, _QUOTE]] = True
        num_quotes, last = 0, len(self.data) - 1
        for first in range(0, len(self.data), _WINDOW):
            quotes = first + np.flatnonzero(self._bytes[first : first + _WINDOW] == _QUOTE)
            turn = num_quotes % 2
            opening, closing = quotes[turn::2], quotes[1 - turn :: 2]
            before, behind = np.maximum(opening - 1, 0), np.minimum(closing + 1, last)
            if not (edges[self._bytes[before]].all() and edges[self._bytes[behind]].all()):
                return None
            num_quotes += len(quotes)
        return num_quotes

    @property
    def are_plain(self) -> bool:
        """Whether all readers of CSV read the quotes in the same way."""
        return self._num_plain_quotes is not None and self._num_plain_quotes % 2 == 0

    @cached_property
    def _quotes(self) -> Ints:
        """The places of the quotes that open and close fields, in turn, ``[Q]``; Q is odd if the last field is open."""
        fields = _quoted_fields(self._separator).finditer(self.data) if b'"' in self.data else ()
        places = [place for field in fields for place in (field.start(), field.start(2))]
        if places and places[-1] == len(self.data):
            del places[-1]
        return np.array(places, dtype=np.int64)

    @cached_property
    def _line_ends(self) -> Ints:
        """The places of the last bytes of all line ends, those within quotes too."""
        ends = self._bytes == _LF
        if b"\r" in self.data:
            ends[:-1] |= (self._bytes[:-1] == _CR) & ~ends[1:]
            ends[-1] |= self._bytes[-1] == _CR
        return np.flatnonzero(ends)

    def _is_quoted(self, places: Ints) -> NDArray[np.bool_]:
        is_quoted: NDArray[np.bool_] = np.searchsorted(self._quotes, places) % 2 == 1
        return is_quoted

    def end(self) -> int:
        """Return where the last row ends that is whole, whatever follows the text; 0 if none is."""
        feed = self.data.rfind(b"\n") + 1
        num_quotes = self._num_plain_quotes
        # Usually no field continues after the last line end.
        if feed and num_quotes is not None and (num_quotes - self.data.count(b'"', feed)) % 2 == 0:
            return feed
        if not len(self._quotes):
            end = self.data.rfind(b"\n") + 1
            # A CR at the very end may be half of a line end.
            return end or self.data.rfind(b"\r", 0, max(len(self.data) - 1, 0)) + 1
        ends = self._line_ends[~self._is_quoted(self._line_ends)]
        ends = ends[(ends < len(self.data) - 1) | (self._bytes[ends] == _LF)]
        return int(ends[-1]) + 1 if len(ends) else 0

    def first(self) -> CsvRows:
        """Return the first row alone, with its line end, or all of the text if it has no whole row."""
        ends = self._line_ends[~self._is_quoted(self._line_ends)]
        return self.upto(int(ends[0]) + 1) if len(ends) else self

    def upto(self, end: int) -> CsvRows:
        """Return the rows before ``end``, where one ends."""
        if end == len(self.data):
            return self
        rows = CsvRows(self.data[:end], chr(self._separator))
        if self._num_plain_quotes is not None:
            rows._num_plain_quotes = self._num_plain_quotes - self.data.count(b'"', end)
            return rows
        rows._quotes = self._quotes[: np.searchsorted(self._quotes, end)]
        if len(self._quotes):  # they are known
            rows._line_ends = self._line_ends[: np.searchsorted(self._line_ends, end)]
        return rows

    @cached_property
    def num_lines(self) -> int:
        """The number of line ends, those within quotes too."""
        num_feeds = self.data.count(b"\n")
        if b"\r" not in self.data:
            return num_feeds
        return num_feeds + self.data.count(b"\r") - self.data.count(b"\r\n")

    def line_at(self, place: int) -> int:
        """Return the number of line ends before a place."""
        return int(np.searchsorted(self._line_ends, place))

    def line_of(self, row: int) -> int:
        """Return the number of line ends before a row."""
        return self.line_at(int(self._bounds.starts[row]))

    @cached_property
    def _bounds(self) -> _Bounds:
        stops = self._line_ends[~self._is_quoted(self._line_ends)]
        starts = np.concatenate(([0], stops + 1))
        if starts[-1] == len(self.data):
            starts = starts[:-1]
        else:
            stops = np.append(stops, len(self.data))
        # An empty row is a line end alone.
        is_pair = (stops > starts) & (stops < len(self.data))
        is_pair[is_pair] = (self._bytes[stops[is_pair]] == _LF) & (self._bytes[stops[is_pair] - 1] == _CR)
        kept = stops - is_pair > starts
        return _Bounds(starts=starts[kept], stops=stops[kept])

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self._bounds.starts)

    def num_fields(self) -> Ints:
        """Return the number of fields of each row, ``[N]``."""
        places = np.flatnonzero(self._bytes == self._separator)
        places = places[~self._is_quoted(places)]
        return 1 + np.searchsorted(places, self._bounds.stops) - np.searchsorted(places, self._bounds.starts)

    def wrong_quote(self) -> tuple[str, int] | None:
        """Return what is wrong with a quoted field, one of ``WRONG_QUOTES``, and the place of a quote of it."""
        found: dict[str, int] = {}
        for field in _quoted_fields(self._separator).finditer(self.data):
            content, closing, text_after = field.groups()
            if not closing:
                return "open", field.start()
            if text_after and content.endswith(b"\\"):
                found.setdefault("escaped", field.start(2))
            elif text_after and (b"\n" in content or b"\r" in content):
                found.setdefault("spilled", field.start())
        return min(found.items(), default=None)


@dataclass(frozen=True)
class _Bounds:
    starts: Ints
    stops: Ints


#: What may be wrong with a quoted field.
WRONG_QUOTES = {
    "open": "a field begins with a quote and has no closing quote; quotes that are text are doubled, within a quoted "
    "field",
    # Meant as a quote within the field.
    "escaped": "a backslash before a quote within a quoted field; there quotes are doubled (Spark writes them so with "
    ".option('escape', '\"'))",
    # The field's end is the beginning of another, and the rows between are lost.
    "spilled": "a quoted field goes over several lines, and text follows its closing quote; quotes that are text are "
    "doubled, within a quoted field",
}


@lru_cache
def _quoted_fields(separator: int) -> re.Pattern[bytes]:
    """Return the pattern of a quoted field: what is in it, its closing quote, and text after it."""
    edge = re.escape(bytes([separator])) + rb"\r\n"
    return re.compile(rb"(?:\A|(?<=[" + edge + rb']))"([^"]*+(?:""[^"]*+)*+)("?)([^' + edge + rb"]*+)")
