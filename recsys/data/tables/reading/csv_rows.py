"""Where rows of separated text begin and end, read as Arrow and Python's ``csv`` read it.

A quote opens a quoted field only as the field's first character; within it two quotes stand for one. All other
quotes are text. Rows end with LF, CR or CR LF outside of quoted fields, and empty ones are left out.

Shape letters: N number of rows, Q number of quotes that open or close a field.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from recsys.data.examples import Ints

_QUOTE, _LF, _CR, _BACKSLASH = b'"'[0], b"\n"[0], b"\r"[0], b"\\"[0]
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
        """Whether there is no quote that readers of CSV may take for another thing."""
        return self._num_plain_quotes is not None and self._num_plain_quotes % 2 == 0

    @cached_property
    def _quotes(self) -> Ints:
        """The places of the quotes that open and close fields, in turn, ``[Q]``; Q is odd if the last field is open."""
        return _field_quotes(self._bytes, self._separator) if b'"' in self.data else np.zeros(0, np.int64)

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
        # Most often no field goes on behind the last line end.
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

    def open_quote(self) -> int | None:
        """Return the place of the quote that opens a field without an end; None if there is none."""
        return int(self._quotes[-1]) if len(self._quotes) % 2 else None

    @cached_property
    def _has_text_after(self) -> NDArray[np.bool_]:
        """Whether text follows each closing quote."""
        closing = self._quotes[1::2]
        inner = closing < len(self.data) - 1
        after = self._bytes[closing[inner] + 1]
        text_after = np.zeros(len(closing), dtype=bool)
        is_end = (after == self._separator) | (after == _LF) | (after == _CR) | (after == _QUOTE)
        text_after[inner] = ~is_end
        return text_after

    def escaped_quote(self) -> int | None:
        """Return the place of the first closing quote between a backslash and text; None if there is none.

        It was meant as a quote within the field.
        """
        closing = self._quotes[1::2]
        found = np.flatnonzero(self._has_text_after & (self._bytes[closing - 1] == _BACKSLASH))
        return int(closing[found[0]]) if len(found) else None

    def spilled_quote(self) -> int | None:
        """Return the place of the first quote that opens a field over several lines with text after its end.

        Such a quote was meant as text, and the field's end is the beginning of another: the rows between are lost.
        """
        if not len(self._quotes) or not self._is_quoted(self._line_ends).any():
            return None
        text_after = self._has_text_after
        if not text_after.any():
            return None
        opening, closing = self._quotes[0::2][: len(self._quotes) // 2], self._quotes[1::2]
        # A doubled quote closes and opens: the field begins where the last quote before it does not follow another.
        begins = np.concatenate(([True], opening[1:] != closing[:-1] + 1))
        first = np.maximum.accumulate(np.where(begins, np.arange(len(opening)), 0))
        for field in np.flatnonzero(text_after):
            start = int(opening[first[field]])
            if self.line_at(start) != self.line_at(int(closing[field])):
                return start
        return None


@dataclass(frozen=True)
class _Bounds:
    starts: Ints
    stops: Ints


def _field_quotes(data: NDArray[np.uint8], separator: int) -> Ints:
    """Return the places of the quotes that open and close fields, in turn; a doubled quote closes and opens."""
    quotes: Ints = np.flatnonzero(data == _QUOTE)
    before = data[quotes - 1]
    can_open = (before == separator) | (before == _LF) | (before == _CR)
    can_open[0] |= quotes[0] == 0
    follows = np.concatenate(([False], np.diff(quotes) == 1))
    # If quotes open and close in turn, these open fields that have begun already.
    wrong = ~(can_open | follows)
    wrong_by_turn = [np.flatnonzero(wrong[turn::2]) * 2 + turn for turn in (0, 1)]
    texts: list[int] = []
    at = 0
    while at < len(quotes):
        if not can_open[at]:
            texts.append(at)
            at += 1
            continue
        found = wrong_by_turn[at % 2]
        next_wrong = int(np.searchsorted(found, at))
        if next_wrong == len(found):
            break
        texts.append(int(found[next_wrong]))
        at = texts[-1] + 1
    return np.delete(quotes, texts) if texts else quotes
