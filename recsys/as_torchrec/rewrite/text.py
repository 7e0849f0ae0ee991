"""A file's text, and edits of it by the places that ``ast`` tells."""

from __future__ import annotations

import ast
import bisect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

_LINE_END = re.compile(rb"\r\n|\r|\n")


class Placed(Protocol):
    """A node of ``ast`` that knows its place."""

    lineno: int
    col_offset: int
    end_lineno: int | None
    end_col_offset: int | None


@dataclass(frozen=True)
class Edit:
    """A piece of text to be replaced.

    Attributes:
        start: The offset of its first byte.
        end: The offset after its last byte.
        text: What to put there.
    """

    start: int
    end: int
    text: str


class Text:
    """Source code.

    Args:
        source: The code, with its line ends as they are.
    """

    def __init__(self, source: str) -> None:
        self._bytes = source.encode()
        self.tree = ast.parse(source)
        ends = [found.end() for found in _LINE_END.finditer(self._bytes)]
        self._starts = [0, *ends]
        found = _LINE_END.search(self._bytes)
        self.newline = found[0].decode() if found else "\n"

    def span(self, node: Placed) -> tuple[int, int]:
        """Return the offsets of a node's first byte and after its last."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def piece(self, start: int, end: int) -> str:
        """Return the text between two offsets."""
        return self._bytes[start:end].decode()

    def lines_around(self, start: int, end: int) -> tuple[int, int]:
        """Return the offsets of the beginning of a piece's first line and of the end of its last, line end included."""
        first = self._starts[bisect.bisect_right(self._starts, start) - 1]
        after = bisect.bisect_left(self._starts, max(end, 1))
        return first, self._starts[after] if after < len(self._starts) else len(self._bytes)

    def edited(self, edits: Iterable[Edit]) -> str:
        """Return the text with edits made; they do not overlap."""
        result = self._bytes
        for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
            result = result[: edit.start] + edit.text.encode() + result[edit.end :]
        return result.decode()
