"""The transport between the devices of one process: one batch goes out from host memory, outputs come together.

Shape letters: B batch, E (feature, table) pairs, S slots, N number of IDs.

The batch is split where its lengths are known, in host memory; each device gets its part in one copy from
page-locked memory that nothing waits for. The same code serves ``cpu``, where the copies fall away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from recsys.bounds import INT64_MAX
from recsys.ops import fbgemm, joined, lengths_to_offsets, present
from recsys.sharding.layout import Entry, Layout


@dataclass(kw_only=True)
class GroupInput:
    """What one call of the lookup kernel takes.

    Attributes:
        values: ``[N]`` int64, rows of the shards.
        offsets: ``[S * B + 1]`` int64.
        weights: ``[N]`` float32, or None.
        slot_ends: ``[S - 1]`` int64 in host memory, where each slot's values end but the last; sequences only.
    """

    values: Tensor
    offsets: Tensor
    weights: Tensor | None
    slot_ends: Tensor | None = None


@dataclass(kw_only=True)
class DistInput:
    """A batch, split for the lookups.

    Attributes:
        groups: in the layout's order.
        lengths: ``[E * B]`` int64, where the outputs are assembled.
        restore: for each entry of a sequence layout, ``[N of the pair]`` int64: where each ID's row went.
    """

    groups: list[GroupInput]
    lengths: Tensor
    restore: list[Tensor]


class LocalInputDist(nn.Module):
    """Routes checked IDs to the groups of a layout.

    Args:
        layout: of the collection.
        sequence: keep what is needed to put the rows of single IDs back in order.
    """

    order: Tensor
    group_ends: Tensor

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
        self._in_order = order == list(range(self._num_pairs))
        self._slot_bounds = list(accumulate((len(group.slots) for group in layout.groups), initial=0))
        self._indices("order", order, torch.int32)
        self._indices("group_ends", [end - 1 for end in self._slot_bounds[1:-1]], torch.int64)

    def _indices(self, name: str, data: Sequence[int], dtype: torch.dtype) -> None:
        self.register_buffer(name, torch.tensor(list(data), dtype=dtype), persistent=False)

    def forward(self, lengths: Tensor, offsets: Tensor, values: Tensor, weights: Tensor | None) -> DistInput:
        """Split a batch.

        Args:
            lengths: ``[E * B]`` int64, pair-major, in host memory.
            offsets: ``[E * B + 1]`` int64.
            values: ``[N]`` int64, checked.
            weights: ``[N]`` float32, or None.
        """
        num_bags = lengths.size(0) // self._num_pairs
        if self._in_order and len(self._slot_bounds) == 2:
            only = GroupInput(values=values, offsets=offsets, weights=weights)
            if self._sequence:
                only.slot_ends = _slot_ends(lengths, self._num_pairs, num_bags)
            return DistInput(groups=[only], lengths=lengths, restore=[])
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
        slot_weights = None if weights is None else present(slot_weights)
        groups = self._by_group(slot_lengths.view(-1), slot_values, slot_weights, num_bags)
        return DistInput(groups=groups, lengths=lengths, restore=restore if self._sequence else [])

    def _by_group(
        self, lengths: Tensor, values: Tensor, weights: Tensor | None, num_bags: int
    ) -> list[GroupInput]:
        num_slots = self._slot_bounds[-1]
        ids_per_slot = lengths.view(num_slots, num_bags).sum(dim=1)
        ends = ids_per_slot.cumsum(dim=0).index_select(0, self.group_ends)
        group_values = torch.tensor_split(values, ends)
        group_weights = None if weights is None else torch.tensor_split(weights, ends)
        groups = []
        for g, (start, end) in enumerate(zip(self._slot_bounds, self._slot_bounds[1:], strict=False)):
            group_lengths = lengths[start * num_bags : end * num_bags]
            groups.append(
                GroupInput(
                    values=group_values[g],
                    offsets=lengths_to_offsets(group_lengths),
                    weights=None if group_weights is None else group_weights[g],
                    slot_ends=_slot_ends(group_lengths, end - start, num_bags) if self._sequence else None,
                )
            )
        return groups


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


def _slot_ends(lengths: Tensor, num_slots: int, num_bags: int) -> Tensor:
    return lengths.view(num_slots, num_bags).sum(dim=1).cumsum(dim=0)[:-1]


class Parcel:
    """What one device gets of a batch, in one copy."""

    def __init__(self) -> None:
        self._ints: list[Tensor] = []
        self._floats: list[Tensor] = []

    def add(self, tensor: Tensor, *, floats: bool = False) -> tuple[bool, int]:
        """Put in a contiguous int64 tensor (or a float32 one) of any shape; the ticket takes it out again."""
        tensors = self._floats if floats else self._ints
        tensors.append(tensor)
        return floats, len(tensors) - 1

    def send(self, device: torch.device) -> Parcel:
        """The parcel on its device; on ``cpu``, or with nothing in it, as it is."""
        if device.type == "cpu" or not (self._ints or self._floats):
            return self
        sent = Parcel()
        # Integers first: their bytes stay aligned to eight.
        tensors = [*self._ints, *self._floats]
        words = [tensor.reshape(-1).view(torch.int32) for tensor in tensors]
        packed = torch.cat(words)
        if device.type == "cuda":
            packed = packed.pin_memory()
        parts = torch.split(packed.to(device, non_blocking=True), [word.size(0) for word in words])
        for i, tensor in enumerate(tensors):
            floats = i >= len(self._ints)
            part = parts[i].view(torch.float32 if floats else torch.int64)
            sent.add(part.view(tensor.size()), floats=floats)
        return sent

    def take(self, ticket: tuple[bool, int]) -> Tensor:
        """What ``add`` gave the ticket for."""
        floats, position = ticket
        return (self._floats if floats else self._ints)[position]


def send(
    batches: Sequence[tuple[DistInput, Layout, bool]],
    dense: Sequence[Tensor],
    devices: Sequence[torch.device],
) -> list[Tensor]:
    """Send the inputs of all collections of a model, and its dense inputs, in one copy to each device.

    Args:
        batches: for each collection its split batch, whose tensors are replaced by those on the devices, its
            layout, and whether its outputs' assembly needs the lengths.
        dense: float32, for the first device.
        devices: rank by rank; the first assembles.

    Returns:
        ``dense`` on the first device.
    """
    parcels = {device: Parcel() for device in devices}
    home = parcels[devices[0]]
    put = []
    for batch, layout, _needs_lengths in batches:
        for inputs, group in zip(batch.groups, layout.groups, strict=True):
            parcel = parcels[devices[group.rank]]
            values, offsets = parcel.add(inputs.values), parcel.add(inputs.offsets)
            weights = None if inputs.weights is None else parcel.add(inputs.weights, floats=True)
            put.append((inputs, devices[group.rank], values, offsets, weights))
    lengths = [home.add(batch.lengths) if needs else None for batch, _, needs in batches]
    restore = [[home.add(back) for back in batch.restore] for batch, _, _ in batches]
    tickets = [home.add(tensor, floats=True) for tensor in dense]
    sent = {device: parcel.send(device) for device, parcel in parcels.items()}
    for inputs, device, values, offsets, weights in put:
        inputs.values, inputs.offsets = sent[device].take(values), sent[device].take(offsets)
        inputs.weights = None if weights is None else sent[device].take(weights)
    at_home = sent[devices[0]]
    for (batch, _, _), length, backs in zip(batches, lengths, restore, strict=True):
        batch.lengths = batch.lengths if length is None else at_home.take(length)
        batch.restore = [at_home.take(back) for back in backs]
    return [at_home.take(ticket) for ticket in tickets]
