"""What lookups take: a batch, split by shards. Both transports make it.

Shape letters: B batch, E (feature, table) pairs, S slots, N number of IDs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(kw_only=True)
class GroupInput:
    """What one call of the lookup kernel takes.

    Attributes:
        values: ``[N]`` int64, rows of the shards.
        offsets: ``[S * B + 1]`` int64.
        weights: ``[N]`` float32, or None.
        slot_ends: ``[S - 1]`` int64 in host memory, where each slot's values end but the last; sequences only.
        ids_per_slot: the number of values of each slot, where the transport knows it.
        batch_sizes: for each slot the batch sizes of all ranks, where they differ from slot to slot.
    """

    values: Tensor
    offsets: Tensor
    weights: Tensor | None
    slot_ends: Tensor | None = None
    ids_per_slot: list[int] | None = None
    batch_sizes: list[list[int]] | None = None

    def sizes(self) -> dict[str, Any]:
        """What a process group's transport knows without reading a tensor; training kernels take it."""
        if self.ids_per_slot is None:
            return {}
        return {"ids_per_slot": self.ids_per_slot, "batch_sizes": self.batch_sizes}


@dataclass(kw_only=True)
class DistInput:
    """A batch, split for the lookups.

    Attributes:
        groups: those that are looked up here, in the layout's order.
        lengths: ``[E * B]`` int64, where the outputs are assembled.
        restore: for each entry of a sequence layout, ``[N of the pair]`` int64: where each ID's row went.
        strides: for each pair this batch's size, where they may differ.
        inverse: ``[E, rows of the full batch]`` int64, which row of its pair's batch each stands for.
    """

    groups: list[GroupInput]
    lengths: Tensor
    restore: list[Tensor] = field(default_factory=list)
    strides: list[int] | None = None
    inverse: Tensor | None = None

    @property
    def is_flat(self) -> bool:
        """Whether pooled outputs come flat, pair by pair, because batch sizes differ on some rank."""
        return False
