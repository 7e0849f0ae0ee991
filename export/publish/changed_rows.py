"""The rows of a table that a snapshot changes.

Shape letters: N number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor


class ChangedRows:
    """Rows of a table that differ from those that servers hold; of a row that is added twice, the last counts."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, Tensor]] = []
        # Rows from here on were not added yet.
        self._end = 0

    def add(self, numbers: Tensor, rows: Tensor, differs: Tensor) -> None:
        """Add rows.

        Args:
            numbers: ``[N]`` int64, ascending, at least one.
            rows: ``[N, ...]``, as servers hold them.
            differs: ``[N]``, a mask of those that differ.
        """
        if int(numbers[0]) < self._end:
            self._parts = [part for old in self._parts for part in _without(old, numbers)]
        self._end = max(self._end, int(numbers[-1]) + 1)
        if differs.any():
            self._parts.append((numbers[differs], rows[differs]))

    def parts(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the rows that differ, and their numbers, ascending over all parts."""
        if all(int(left[-1]) < int(right[0]) for (left, _), (right, _) in pairwise(self._parts)):
            yield from self._parts
            return
        numbers, order = torch.cat([numbers for numbers, _ in self._parts]).sort()
        yield numbers, torch.cat([rows for _, rows in self._parts])[order]


def _without(part: tuple[Tensor, Tensor], others: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what is left of a part without the rows of some numbers, if anything is."""
    numbers, rows = part
    if numbers[-1] < others[0] or numbers[0] > others[-1]:
        yield part
        return
    place = torch.searchsorted(others, numbers).clamp(max=len(others) - 1)
    is_kept = others[place] != numbers
    if is_kept.any():
        yield numbers[is_kept], rows[is_kept]
