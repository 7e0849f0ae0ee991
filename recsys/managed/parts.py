"""The parts of a mapping that ranks hold: some of its buckets each.

Shape letters: K buckets, M uses, N number of IDs, Z rows of the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class MappingPart:
    """The buckets of a mapping that a rank holds, with the rows of the table that belong to them.

    Attributes:
        buckets: The first bucket, and the one after the last.
        rows: The first row, and the one after the last.
        owners: ``[K]`` int64, the rank that holds each bucket.
    """

    buckets: tuple[int, int]
    rows: tuple[int, int]
    owners: Tensor


def cut(module: nn.Module, names: Sequence[str], num_rows: int, part: MappingPart | None) -> None:
    """Replace a module's buffers that have an entry for each row by those of a part.

    Args:
        module: It is whole, or has a part if this is None.
        names: The names of the buffers.
        num_rows: Z.
        part: The part; None for whole buffers, which lie on the meta device.
    """
    for name in names:
        buffer = module.get_buffer(name)
        if part is not None:
            setattr(module, name, buffer[slice(*part.rows)].clone())
        else:
            setattr(module, name, buffer.new_empty(num_rows, *buffer.shape[1:], device="meta"))


@runtime_checkable
class Divisible(Protocol):
    """A managed collision module whose buckets may lie on several ranks."""

    @property
    def part(self) -> MappingPart | None:
        """The part that this rank holds; None for all of it."""

    def hold(self, part: MappingPart | None) -> None:
        """Drop what belongs to other ranks; None: be whole again, on the meta device."""

    #: Of the hooks that make state dicts of parts.
    hook_ids: tuple[int, int]

    def part_buffers(self) -> Sequence[str]:
        """Return the names of the buffers that have an entry for each row."""

    def bucket_ends(self) -> Sequence[int]:
        """Return the row after the last of each bucket, K numbers."""

    def buckets_of(self, ids: Tensor) -> Tensor:
        """Return the bucket of each ID, ``[N]`` int64."""

    def uses(self, ids: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return what the owners of a batch's IDs learn from it.

        Args:
            ids: ``[N]`` int64 by feature.

        Returns:
            ``[M, columns]`` int64, the distinct IDs, ascending, in the first column; and the place of each ID of all
            features among them, ``[sum of N]`` int64.
        """

    def learn(self, uses: Tensor) -> None:
        """Learn from one batch of all ranks: their ``uses`` of this rank's buckets, one after another."""

    def rows_here(self, ids: Tensor) -> Tensor:
        """Return the row in the whole table of each ID of this rank's buckets, ``[N]`` int64."""
