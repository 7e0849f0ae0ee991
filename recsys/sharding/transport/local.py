"""The transport between the devices of one process, and the int-nbit kernels that it serves.

Shape letters: B batch, E (feature, table) pairs, S slots, N number of IDs.

The batch is split in host memory, where its lengths are known; each device gets its part in one asynchronous
copy from page-locked memory. The same code serves ``cpu``, without copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from recsys.kernels.int_nbit import IntNBitLookup, LookupSlot
from recsys.ops import lengths_to_offsets
from recsys.sharding.plan.device_rows import DeviceRows, table_path
from recsys.sharding.plan.layout import Group, Layout, OutputPiece, pooled_pieces
from recsys.sharding.transport.awaitable import Awaitable, NoWait
from recsys.sharding.transport.inputs import CheckedIds, DistInput, GroupInput, Router


class LocalInputDist(nn.Module):
    """Routes checked IDs to the groups of a layout.

    Args:
        layout: The layout of the collection.
        sequence: Keep what is needed to put the rows of single IDs back in order.
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


class DeviceBatch:
    """One device's part of a batch, sent in one copy."""

    def __init__(self) -> None:
        self._ints: list[Tensor] = []
        self._floats: list[Tensor] = []

    def add(self, tensor: Tensor, *, floats: bool = False) -> tuple[bool, int]:
        """Add a contiguous int64 (or float32) tensor of any shape; return the ticket for ``take``."""
        tensors = self._floats if floats else self._ints
        tensors.append(tensor)
        return floats, len(tensors) - 1

    def send(self, device: torch.device) -> DeviceBatch:
        """Return the batch on its device; unchanged on ``cpu`` or if empty."""
        if device.type == "cpu" or not (self._ints or self._floats):
            return self
        sent = DeviceBatch()
        # Integers first, to keep them aligned to eight bytes.
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
        """Return the tensor of a ticket."""
        floats, position = ticket
        return (self._floats if floats else self._ints)[position]


def send(
    batches: Sequence[tuple[DistInput, Layout, bool]],
    dense: Sequence[Tensor],
    devices: Sequence[torch.device],
) -> list[Tensor]:
    """Send the inputs of all collections of a model, and its dense inputs, in one copy to each device.

    Args:
        batches: For each collection its split batch, whose tensors are replaced by those on the devices, its
            layout, and whether its outputs' assembly needs the lengths.
        dense: float32, for the first device.
        devices: The device of each rank; the first assembles.

    Returns:
        ``dense`` on the first device.
    """
    device_batches = {device: DeviceBatch() for device in devices}
    home = device_batches[devices[0]]
    put = []
    for batch, layout, _needs_lengths in batches:
        for inputs, group in zip(batch.groups, layout.groups, strict=True):
            device_batch = device_batches[devices[group.rank]]
            values, offsets = device_batch.add(inputs.values), device_batch.add(inputs.offsets)
            weights = None if inputs.weights is None else device_batch.add(inputs.weights, floats=True)
            put.append((inputs, devices[group.rank], values, offsets, weights))
    lengths = [home.add(batch.lengths) if needs else None for batch, _, needs in batches]
    restore = [[home.add(back) for back in batch.restore] for batch, _, _ in batches]
    tickets = [home.add(tensor, floats=True) for tensor in dense]
    sent = {device: device_batch.send(device) for device, device_batch in device_batches.items()}
    for inputs, device, values, offsets, weights in put:
        inputs.values, inputs.offsets = sent[device].take(values), sent[device].take(offsets)
        inputs.weights = None if weights is None else sent[device].take(weights)
    at_home = sent[devices[0]]
    for (batch, _, _), length, backs in zip(batches, lengths, restore, strict=True):
        batch.lengths = batch.lengths if length is None else at_home.take(length)
        batch.restore = [at_home.take(back) for back in backs]
    return [at_home.take(ticket) for ticket in tickets]


class LocalTransport(nn.Module):
    """Sends one batch from host memory to the devices of this process, and gathers outputs on the first.

    Args:
        layout: The layout of the collection.
        devices: Rank by rank.
        sequence: Whether outputs are rows of single IDs.
        output_dtype: The dtype of assembled outputs.
    """

    def __init__(
        self,
        layout: Layout,
        devices: Sequence[torch.device],
        *,
        sequence: bool,
        output_dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._layout = layout
        self._devices = list(devices)
        self._sequence = sequence
        self._output_dtype = output_dtype
        self.dist = LocalInputDist(layout, sequence=sequence)
        self._pieces = [] if sequence else pooled_pieces(layout)
        self._group_dims = [sum(layout.output_dim(slot) for slot in group.slots) for group in layout.groups]

    @property
    def needs_lengths(self) -> bool:
        """Whether the outputs' assembly reads the bags' lengths."""
        return self._sequence or any(self._layout.divides_mean(slot) for _, slot in self._layout.slots)

    def split(self, checked: CheckedIds) -> DistInput:
        """Split a batch for the groups of the layout; everything stays in host memory.

        Raises:
            ValueError: The features' batch sizes differ.
        """
        if checked.strides is not None:
            raise ValueError(
                "features: got a variable batch, expected one batch size; recsys.jagged.dedup.expand makes it one"
            )
        split: DistInput = self.dist(checked.lengths, checked.offsets, checked.values, checked.weights)
        return split

    def input_dist(self, checked: CheckedIds) -> Awaitable[Awaitable[DistInput]]:
        """Split a batch and send it to the devices.

        Raises:
            ValueError: The features' batch sizes differ.
        """
        inputs = self.split(checked)
        send([(inputs, self._layout, self.needs_lengths)], [], self._devices)
        return NoWait(NoWait(inputs))

    def pooled(self, outputs: Sequence[Tensor], inputs: DistInput) -> Awaitable[Tensor]:
        """Put the groups' outputs side by side in the order of the pairs: ``[B, sum of D]``."""
        gathered = self._gather(outputs)
        parts = [self._piece(piece, gathered, inputs) for piece in self._pieces]
        return NoWait(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))

    def rows(self, outputs: Sequence[Tensor], inputs: DistInput) -> Awaitable[list[list[Tensor]]]:
        """Return the rows of each group and slot, ``[N of the slot, width]``."""
        found = []
        for group, rows, group_input in zip(
            self._layout.groups, self._gather(outputs), inputs.groups, strict=True
        ):
            by_slot: Sequence[Tensor] = [rows]
            if len(group.slots) > 1:
                assert group_input.slot_ends is not None
                by_slot = torch.tensor_split(rows, group_input.slot_ends)
            slots = []
            for i, slot in enumerate(group.slots):
                padded = slot.width != self._layout.output_dim(slot)
                slots.append(by_slot[i].narrow(1, 0, slot.width) if padded else by_slot[i])
            found.append(slots)
        return NoWait(found)

    def _gather(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the groups' outputs on the first rank's device."""
        home = self._devices[0]
        devices = [self._devices[group.rank] for group in self._layout.groups]
        # Copies to host memory must be waited for, because it is read at once; a device's stream orders the
        # others.
        no_wait = home.type != "cpu"
        return [
            out if device == home else out.to(home, non_blocking=no_wait)
            for out, device in zip(outputs, devices, strict=True)
        ]

    def _piece(self, piece: OutputPiece, gathered: list[Tensor], inputs: DistInput) -> Tensor:
        columns = [self._columns(gathered[g], g, start, piece.width) for g, start in piece.sources]
        total = columns[0]
        for other in columns[1:]:
            total = total + other
        if piece.mean_of is not None:
            num_pairs = len(self._layout.pairs)
            bags = inputs.lengths.view(num_pairs, inputs.lengths.size(0) // num_pairs)
            total = total / bags[piece.mean_of].clamp(min=1).to(torch.float32).unsqueeze(1)
        partial = self._layout.groups[piece.sources[0][0]].partial
        return total.to(self._output_dtype) if partial else total

    def _columns(self, output: Tensor, group: int, start: int, width: int) -> Tensor:
        return output if width == self._group_dims[group] else output.narrow(1, start, width)


def int_nbit_kernel(
    layout: Layout, group: Group, rank: DeviceRows, path: str, output_dtype: torch.dtype
) -> IntNBitLookup:
    """Return the lookup of a group in a rank's rows.

    Args:
        layout: The layout of the collection.
        group: One of its groups.
        rank: The rows of the rank.
        path: The collection's path in its model.
        output_dtype: The dtype of the collection.
    """
    # Partial sums are rounded once, after the addition.
    dtype = torch.float32 if group.partial else output_dtype
    slots = []
    for slot in group.slots:
        table = table_path(path, layout.table_of(slot).name)
        offset = rank.layout.offset_of(table, slot.columns[0], slot.row_start)
        slots.append(LookupSlot(row_format=layout.row_format(slot), offset_bytes=offset))
    return IntNBitLookup(slots, group.pooling, dtype, rank.rows, rank.layout.row_alignment, rank.device)
