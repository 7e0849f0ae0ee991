"""Where the numbers of a plan lie: its buffers, and the places in them.

Shape letters: B rows.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from export.lower.kinds import BufferKind

T = TypeVar("T")
# Rows of scratch memory begin on cache lines, and lie no power of two apart.
_LINE = 16


@dataclass(frozen=True)
class Place:
    """Columns of a buffer."""

    buffer: int
    column: int
    width: int

    def part(self, offset: int, width: int) -> Place:
        """Return some of the columns."""
        return Place(self.buffer, self.column + offset, width)


NOWHERE = Place(0, 0, 0)


@dataclass
class Buffers:
    """The buffers of a plan.

    Attributes:
        kinds: What each is.
        indices: Which input, constant or output it is; of scratch memory, where it begins.
        widths: Numbers of a row.
    """

    kinds: list[BufferKind] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)

    def add(self, kind: BufferKind, index: int, width: int) -> Place:
        """Add a buffer; return all of its columns."""
        self.kinds.append(kind)
        self.indices.append(index)
        self.widths.append(width)
        return Place(len(self.kinds) - 1, 0, width)

    def place_scratch(self, steps: Sequence[Sequence[Place]], kept: Container[int]) -> None:
        """Give scratch buffers memory: two share it if no step needs both.

        Args:
            steps: The places that each uses.
            kept: Buffers that share theirs with none.
        """
        used: dict[int, tuple[int, int]] = {}
        for at, places in enumerate(steps):
            for place in places:
                if place.width:
                    used[place.buffer] = (used.get(place.buffer, (at, at))[0], at)
        used |= {buffer: (0, len(steps)) for buffer in used if buffer in kept}
        placed: list[int] = []
        for i, kind in enumerate(self.kinds):
            if kind not in (BufferKind.SCRATCH, BufferKind.IDS) or i not in used:
                continue
            # Behind those that are used at the same time and would overlap, one after the other.
            taken = sorted(
                (self.indices[j], self.indices[j] + _scratch_width(self.widths[j]))
                for j in placed
                if self.kinds[j] is kind and used[i][0] <= used[j][1] and used[j][0] <= used[i][1]
            )
            at = 0
            for begin, end in taken:
                if begin < at + _scratch_width(self.widths[i]):
                    at = max(at, end)
            self.indices[i] = at
            placed.append(i)


def _scratch_width(width: int) -> int:
    return (width + _LINE - 1) // _LINE * _LINE + _LINE


def place_in(items: list[T], item: T) -> int:
    """Return the place of an item, which is added if it is not there."""
    if item not in items:
        items.append(item)
    return items.index(item)
