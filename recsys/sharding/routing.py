"""Which IDs go to which slot of a layout: the same for every transport.

Shape letters: B batch, E (feature, table) pairs, S slots, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recsys.bounds import INT64_MAX
from recsys.ops import fbgemm, joined, present
from recsys.sharding.layout import Entry, Layout


@dataclass(frozen=True, kw_only=True)
class Routed:
    """A batch in the order of the slots.

    Attributes:
        lengths: ``[S * B]`` int64, slot-major.
        values: ``[N]`` int64, rows of the slots' shards.
        weights: ``[N]`` float32, or None.
        restore: for each entry of a sequence layout, ``[N of the pair]`` int64: where each ID's row went, counted
            through the parts of the entry.
    """

    lengths: Tensor
    values: Tensor
    weights: Tensor | None
    restore: list[Tensor]


class Router(nn.Module):
    """Routes checked IDs to the slots of a layout.

    Args:
        layout: of the collection.
        sequence: keep what is needed to put the rows of single IDs back in order.
    """

    order: Tensor

    def __init__(self, layout: Layout, *, sequence: bool) -> None:
        super().__init__()
        self._num_pairs = len(layout.pairs)
        self._sequence = sequence
        # Sequences are cut pair by pair, because FBGEMM's way back covers all that one call cuts.
        entries = layout.entries
        positions = range(len(entries))
        steps = [[i] for i in positions] if sequence else ([list(positions)] if entries else [])
        cuts = [_RowCut([entries[i] for i in step], self._num_pairs) for step in steps]
        self.cuts = nn.ModuleList(cuts)
        self._num_rows = self._num_pairs + sum(cut.num_rows for cut in cuts)
        first_row = {}
        at = self._num_pairs
        for step in steps:
            num_parts = max(len(entries[i].bounds) - 1 for i in step)
            for k, i in enumerate(step):
                first_row[i] = (at + k, len(step))
            at += num_parts * len(step)
        order = []
        for _, slot in layout.slots:
            if slot.entry is None:
                order.append(slot.pair)
            else:
                start, stride = first_row[slot.entry]
                order.append(start + slot.part * stride)
        self.in_order = order == list(range(self._num_pairs))
        self.register_buffer("order", torch.tensor(order, dtype=torch.int32), persistent=False)

    def forward(self, lengths: Tensor, values: Tensor, weights: Tensor | None) -> Routed:
        """Route a batch.

        Args:
            lengths: ``[E * B]`` int64, pair-major.
            values: ``[N]`` int64, checked.
            weights: ``[N]`` float32, or None.
        """
        num_bags = lengths.size(0) // self._num_pairs
        all_lengths, all_values, all_weights = [lengths], [values], [weights]
        restore = []
        for cut in self.cuts:
            cut_lengths, cut_values, cut_weights, back = cut(lengths, values, weights, num_bags)
            all_lengths.append(cut_lengths)
            all_values.append(cut_values)
            all_weights.append(cut_weights)
            restore.append(back)
        slot_lengths, slot_values, slot_weights = fbgemm.permute_2D_sparse_data(
            self.order,
            joined(all_lengths).view(self._num_rows, num_bags),
            joined(all_values),
            None if weights is None else joined([w for w in all_weights if w is not None]),
        )
        return Routed(
            lengths=slot_lengths.view(-1),
            values=slot_values,
            weights=None if weights is None else present(slot_weights),
            restore=restore,
        )


class _RowCut(nn.Module):
    """Sends the IDs of some pairs to the row shards of their tables: FBGEMM's bucketize."""

    pairs: Tensor
    block_sizes: Tensor

    def __init__(self, entries: Sequence[Entry], num_pairs: int) -> None:
        super().__init__()
        pairs = [entry.pair for entry in entries]
        self._num_parts = max(len(entry.bounds) for entry in entries) - 1
        self.num_rows = self._num_parts * len(entries)
        self._all_pairs = pairs == list(range(num_pairs))
        self._num_pairs = num_pairs
        self.register_buffer("pairs", torch.tensor(pairs, dtype=torch.int32), persistent=False)
        # FBGEMM asks for block sizes of equal parts too; the bounds below take their place.
        self.register_buffer("block_sizes", torch.full((len(entries),), INT64_MAX), persistent=False)
        self._bounds_names = []
        for i, entry in enumerate(entries):
            # Entries with fewer parts get empty ones at the end.
            bounds = [*entry.bounds, *[entry.bounds[-1]] * (self._num_parts + 1 - len(entry.bounds))]
            self.register_buffer(f"bounds_{i}", torch.tensor(bounds), persistent=False)
            self._bounds_names.append(f"bounds_{i}")

    def forward(
        self, lengths: Tensor, values: Tensor, weights: Tensor | None, num_bags: int
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Part-major lengths, values (rows of the shards) and weights, and each ID's place among the values."""
        weighted = weights is not None
        if not self._all_pairs:
            picked, values, picked_weights = fbgemm.permute_2D_sparse_data(
                self.pairs, lengths.view(self._num_pairs, num_bags), values, weights
            )
            lengths = picked.view(-1)
            weights = present(picked_weights) if weighted else None
        cut_lengths, cut_values, cut_weights, _, back = fbgemm.block_bucketize_sparse_features(
            lengths,
            values,
            False,
            True,
            self.block_sizes,
            self._num_parts,
            weights,
            None,
            -1,
            [getattr(self, name) for name in self._bounds_names],
        )
        return cut_lengths, cut_values, present(cut_weights) if weighted else None, present(back)
