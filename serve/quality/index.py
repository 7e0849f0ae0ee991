"""Where answers are kept, by the keys of their requests: numbers only, no object for an answer.

Shape letters: K answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Places = NDArray[np.int64]
#: Memory of an entry.
ENTRY_BYTES = 20
# So many segments of a level become one of the next: an entry is sorted again once a level.
_FAN_OUT = 8


class Segment(NamedTuple):
    """Some entries, by ascending key.

    Attributes:
        keys: uint64 ``[K]``.
        blocks: int64 ``[K]``: the number of the block that has the answer.
        places: int32 ``[K]``: its place in the block.
        level: how often its entries were put together with others.
    """

    keys: Keys
    blocks: Places
    places: NDArray[np.int32]
    level: int


class KeyIndex:
    """Sorted segments, of which there are few. Not thread-safe.

    Args:
        known: returns the numbers of the blocks that are still known, ascending; entries of others go.
    """

    def __init__(self, known: Callable[[], Places]) -> None:
        self._known = known
        self._segments: list[Segment] = []

    def add(self, keys: Keys, block: int) -> None:
        """Add a block, whose number is larger than those before.

        Args:
            keys: of its answers, ``[K]``.
            block: its number.
        """
        order = np.argsort(keys)
        blocks = np.full(len(keys), block, np.int64)
        self._segments.append(Segment(keys[order], blocks, order.astype(np.int32), 0))
        while len(self._segments) >= _FAN_OUT and self._segments[-_FAN_OUT].level == self._segments[-1].level:
            self._segments[-_FAN_OUT:] = [self._merged(self._segments[-_FAN_OUT:])]

    def find(self, keys: Keys) -> list[list[tuple[int, int]]]:
        """Return for each key the number of the block and the place in it of each entry, the oldest first."""
        found: list[list[tuple[int, int]]] = [[] for _ in keys]
        for segment in self._segments:
            starts = np.searchsorted(segment.keys, keys, side="left")
            ends = np.searchsorted(segment.keys, keys, side="right")
            for at in np.flatnonzero(ends > starts).tolist():
                part = slice(starts[at], ends[at])
                found[at] += zip(segment.blocks[part].tolist(), segment.places[part].tolist(), strict=True)
        for entries in found:
            entries.sort()
        return found

    def _merged(self, segments: list[Segment]) -> Segment:
        blocks = np.concatenate([one.blocks for one in segments])
        known = self._known()
        at = np.minimum(np.searchsorted(known, blocks), max(len(known) - 1, 0))
        kept = np.flatnonzero(known[at] == blocks) if len(known) else np.empty(0, np.int64)
        keys = np.concatenate([one.keys for one in segments])[kept]
        places = np.concatenate([one.places for one in segments])[kept]
        order = np.argsort(keys)
        return Segment(keys[order], blocks[kept][order], places[order], segments[-1].level + 1)
