"""The way of pooled embeddings whose features have batch sizes of their own.

Shape letters: B batch, D embedding dim, W world size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributed as dist

from recsys.sharding.exchange import FlatExchange
from recsys.sharding.group_dist import RankInput
from recsys.sharding.layout import HOME, Layout, Slot


class VariableExchange:
    """One batch's outputs on their way, each slot's with a batch size of its own.

    Args:
        layout: of the collection.
        rank: this one.
        inputs: of the batch.
        group: the ranks.
        dtypes: what crosses, forth and back.
    """

    def __init__(
        self,
        layout: Layout,
        rank: int,
        inputs: RankInput,
        group: dist.ProcessGroup,
        dtypes: tuple[torch.dtype, torch.dtype],
    ) -> None:
        assert inputs.slot_batch_sizes is not None
        self._layout = layout
        self._inputs = inputs
        self._world_size = dist.get_world_size(group)
        self._own_slots = [s for g in layout.groups if g.rank == rank for s in g.slots]
        self._per_group = [len(g.slots) for g in layout.groups if g.rank == rank]
        receive_sizes = [0] * self._world_size
        for _, slot in layout.slots:
            if slot.rank != HOME:
                receive_sizes[slot.rank] += self._size(slot)
        # By own group and rank: how many numbers the group found for the rank.
        self._found = self._numbers_found(inputs.slot_batch_sizes)
        send_sizes = [sum(of_group[s] for of_group in self._found) for s in range(self._world_size)]
        self._exchange = FlatExchange(send_sizes, receive_sizes, group, dtypes)

    def _size(self, slot: Slot) -> int:
        return self._inputs.strides[slot.pair] * self._layout.output_dim(slot)

    def _numbers_found(self, batch_sizes: list[list[int]]) -> list[list[int]]:
        found, at = [], 0
        for num_slots in self._per_group:
            slots = range(at, at + num_slots)
            found.append(
                [
                    sum(batch_sizes[i][s] * self._layout.output_dim(self._own_slots[i]) for i in slots)
                    for s in range(self._world_size)
                ]
            )
            at += num_slots
        return found

    def start(self, own: Sequence[Tensor], device: torch.device) -> Tensor:
        """Send the own groups' flat outputs; returns a token for ``finish``."""
        if not own:
            return self._exchange.start(torch.zeros(0, device=device))
        parts = [torch.split(flat, sizes) for flat, sizes in zip(own, self._found, strict=True)]
        ordered = [part for of_rank in zip(*parts, strict=True) for part in of_rank]
        return self._exchange.start(torch.cat(ordered))

    def finish(self, token: Tensor, home: Sequence[Tensor]) -> Tensor:
        """Wait, and put together: flat, pair by pair ``[B of the pair, D]``."""
        flat = torch.cat([*(part.reshape(-1) for part in home), self._exchange.finish(token)])
        slots = [slot for _, slot in self._layout.slots]
        pieces = torch.split(flat, [self._size(slot) for slot in slots])
        found: dict[tuple[int, tuple[int, int]], Tensor] = {}
        for slot, piece in zip(slots, pieces, strict=True):
            rows = piece.view(self._inputs.strides[slot.pair], self._layout.output_dim(slot))
            key = (slot.pair, slot.columns)
            found[key] = found[key] + rows if key in found else rows
        # Columns that are cut by rows; others of the same table may not be.
        for pair, columns in {(s.pair, s.columns) for s in slots if self._layout.divides_mean(s)}:
            found[pair, columns] = found[pair, columns] / self._bag_sizes(pair)
        pooled = []
        for p in range(len(self._layout.pairs)):
            rows = torch.cat([found[key] for key in sorted(key for key in found if key[0] == p)], dim=1)
            pooled.append(rows.reshape(-1))
        return torch.cat(pooled)

    def _bag_sizes(self, pair: int) -> Tensor:
        lengths = self._inputs.lengths.view(len(self._layout.pairs), -1)[pair, : self._inputs.strides[pair]]
        return lengths.clamp(min=1).to(torch.float32).unsqueeze(1)
