"""Changes of a mapping from raw IDs to rows, between two states of a table.

Shape letters: N raw IDs that get rows, K raw IDs that lose them, M raw IDs that own rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recsys.managed.mapping import rows_of
from recsys.managed.slots import owners_of, rows_in


@dataclass(frozen=True, kw_only=True)
class MappingChange:
    """Raw IDs whose rows change. No ID is in both lists.

    Attributes:
        raw_ids: ``[N]`` int64, ascending: IDs that were added, or moved to another row.
        rows: ``[N]`` int64, the row that each of them owns now; each row once.
        evicted: ``[K]`` int64, ascending: IDs that own no row any more.
    """

    raw_ids: Tensor
    rows: Tensor
    evicted: Tensor

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes."""
        return not self.raw_ids.numel() and not self.evicted.numel()


def joined_changes(changes: Sequence[MappingChange]) -> MappingChange:
    """Return changes that follow each other as one: of each raw ID the last.

    It may evict raw IDs that owned no row before the first change.

    Args:
        changes: At least one, in order.
    """
    ids = torch.cat([part for change in changes for part in (change.raw_ids, change.evicted)])
    rows = torch.cat(
        [part for change in changes for part in (change.rows, torch.full_like(change.evicted, -1))]
    )
    every, places = torch.unique(ids, return_inverse=True)
    last = torch.zeros_like(every).scatter_reduce_(0, places, torch.arange(len(places)), "amax")
    is_kept = rows[last] >= 0
    return MappingChange(raw_ids=every[is_kept], rows=rows[last][is_kept], evicted=every[~is_kept])


def mapping_change(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]) -> MappingChange:
    """Compare two states of a mapping.

    Args:
        before: Raw IDs that own rows, ``[M]`` int64, ascending, each once, and their rows, ``[M]`` int64, as
            ``owners()`` of a managed collision module returns them.
        after: The same, later.

    Returns:
        What leads from the one to the other, in host memory.
    """
    old_ids, old_rows = (part.cpu() for part in before)
    new_ids, new_rows = (part.cpu() for part in after)
    rows_before = _rows_at(old_ids, old_rows, new_ids)
    is_changed = rows_before != new_rows
    is_gone = _rows_at(new_ids, new_rows, old_ids) < 0
    return MappingChange(raw_ids=new_ids[is_changed], rows=new_rows[is_changed], evicted=old_ids[is_gone])


def change_of_slots(slots: Tensor, ids: Tensor, rows: Tensor, *, is_whole: bool) -> MappingChange:
    """Compare what a table's buckets hold with what IDs own now.

    Args:
        slots: The buckets (``recsys.managed.slots``).
        ids: ``[N]`` int64, ascending, each once.
        rows: ``[N]`` int64, the row of each; -1 for an ID that owns none.
        is_whole: Whether all other IDs own none; otherwise they own what they did.
    """
    if is_whole:
        return mapping_change(owners_of(slots), (ids[rows >= 0], rows[rows >= 0]))
    is_changed = rows_in(slots, ids) != rows
    ids, rows = ids[is_changed], rows[is_changed]
    return MappingChange(raw_ids=ids[rows >= 0], rows=rows[rows >= 0], evicted=ids[rows < 0])


def _rows_at(known: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    """Return the row of each ID, ``[N]`` int64; -1 for those that own none."""
    if not known.numel():
        return torch.full_like(ids, -1)
    return rows_of(known, rows, ids, -1)
