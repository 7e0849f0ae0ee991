"""The transport between the devices of one process: one batch goes out from host memory, outputs come together.

Shape letters: B batch, E (feature, table) pairs, S slots, N number of IDs.

The batch is split where its lengths are known, in host memory; each device gets its part in one copy from
page-locked memory that nothing waits for. The same code serves ``cpu``, where the copies fall away.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from recsys.ops import lengths_to_offsets
from recsys.sharding.inputs import DistInput, GroupInput
from recsys.sharding.layout import Layout
from recsys.sharding.routing import Router


class LocalInputDist(nn.Module):
    """Routes checked IDs to the groups of a layout.

    Args:
        layout: of the collection.
        sequence: keep what is needed to put the rows of single IDs back in order.
    """

    group_ends: Tensor

    def __init__(self, layout: Layout, *, sequence: bool) -> None:
        super().__init__()
        self._num_pairs = len(layout.pairs)
        self._sequence = sequence
        self.router = Router(layout, sequence=sequence)
        self._slot_bounds = list(accumulate((len(group.slots) for group in layout.groups), initial=0))
        ends = torch.tensor([end - 1 for end in self._slot_bounds[1:-1]], dtype=torch.int64)
        self.register_buffer("group_ends", ends, persistent=False)

    def forward(self, lengths: Tensor, offsets: Tensor, values: Tensor, weights: Tensor | None) -> DistInput:
        """Split a batch.

        Args:
            lengths: ``[E * B]`` int64, pair-major, in host memory.
            offsets: ``[E * B + 1]`` int64.
            values: ``[N]`` int64, checked.
            weights: ``[N]`` float32, or None.
        """
        num_bags = lengths.size(0) // self._num_pairs
        if self.router.in_order and len(self._slot_bounds) == 2:
            only = GroupInput(values=values, offsets=offsets, weights=weights)
            if self._sequence:
                only.slot_ends = _slot_ends(lengths, self._num_pairs, num_bags)
            return DistInput(groups=[only], lengths=lengths, restore=[])
        routed = self.router(lengths, values, weights)
        groups = self._by_group(routed.lengths, routed.values, routed.weights, num_bags)
        return DistInput(groups=groups, lengths=lengths, restore=routed.restore if self._sequence else [])

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
