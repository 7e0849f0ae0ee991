"""All rows of a model's tables, copied in slices between the steps of a training.

Shape letters: N number of rows, R rows of a table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import torch
from torch import Tensor

from recsys.training.snapshot import Snapshots
from recsys.training.touched import TouchedRows

# Bytes of a slice's rows.
_SLICE_BYTES = 1 << 22
# Touched rows of so many slices are copied at once, at the end.
_LAST_SLICES = 4
# Rounds of rows that were touched while others were copied; a training that touches more than is copied ends here.
_MOST_ROUNDS = 4
# The share of the time that is spent on slices.
_SHARE = 0.03
#: Slices of one call.
MOST_SLICES = 64

#: Rows of tables, ``[N]`` int64 each, of some bytes together.
Slice = list[tuple[str, Tensor]]


class RowSlices:
    """The numbers of all rows, and then again those of rows that were touched meanwhile, until few are.

    What is touched after the last slice is left to the tracker. Every rank makes one, and takes the same slices.

    Args:
        snapshots: Knows the tables.
        touched: Knows the rows that are touched; what it knew before is forgotten.
        consumer: Who asks it.
    """

    def __init__(self, snapshots: Snapshots, touched: TouchedRows, consumer: str) -> None:
        self._sizes, self._touched, self._consumer = snapshots.sizes, touched, consumer
        touched.clear(consumer)
        self._slices = self._rounds()
        self._next = next(self._slices, None)

    @property
    def is_done(self) -> bool:
        """Whether none is left."""
        return self._next is None

    def take(self, num: int) -> Iterator[Slice]:
        """Yield the next slices, if there are as many."""
        while num > 0 and self._next is not None:
            yield self._next
            self._next = next(self._slices, None)
            num -= 1

    def _rounds(self) -> Iterator[Slice]:
        yield from self._cut({table: range(num_rows) for table, (num_rows, _) in self._sizes.items()})
        for _ in range(_MOST_ROUNDS):
            rows = self._touched.rows(self._consumer, clear=False)
            if next(islice(self._cut(rows), _LAST_SLICES, None), None) is None:
                return
            self._touched.clear(self._consumer)
            yield from self._cut(rows)

    def _cut(self, rows: Mapping[str, Tensor | range]) -> Iterator[Slice]:
        found: Slice = []
        room = _SLICE_BYTES
        for table, numbers in rows.items():
            width = 4 * self._sizes[table][1]
            first = 0
            while first < len(numbers):
                part = numbers[first : first + max(1, room // width)]
                found.append(
                    (table, torch.arange(part.start, part.stop) if isinstance(part, range) else part)
                )
                first += len(part)
                room -= len(part) * width
                if room < width:
                    yield found
                    found, room = [], _SLICE_BYTES
        if found:
            yield found


class Pace:
    """How many slices may be copied now, so that a training is slowed down by a few percent."""

    def __init__(self) -> None:
        self._slice_s = self._ended_s = 0.0

    def num_slices(self) -> int:
        """Return how many."""
        if not self._ended_s:
            return 1
        elapsed_s = time.perf_counter() - self._ended_s
        return min(MOST_SLICES, int(_SHARE * elapsed_s / max(self._slice_s, 1e-6)))

    def copied(self, slices: Sequence[Slice], seconds: float) -> None:
        """Note how long some slices took."""
        self._ended_s = time.perf_counter()
        self._slice_s = seconds / max(1, len(slices))
