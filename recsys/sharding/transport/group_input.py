"""Input distribution over a process group: each rank has a batch, each shard gets its IDs from all ranks.

Shape letters: B batch, E (feature, table) pairs, S slots, N number of IDs, W world size.

Two collectives per batch. The first tells every rank how many IDs come for each of its slots, and for how many
bags; the second brings lengths, IDs and weights in one piece. The first one's result is read, because receive
buffers need sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch import distributed as dist

from recsys.ops import fbgemm, lengths_to_offsets
from recsys.sharding.plan.layout import REPLICATED, Layout
from recsys.sharding.transport.awaitable import Awaitable, Deferred, NoWait
from recsys.sharding.transport.exchange import AllToAll
from recsys.sharding.transport.inputs import DistInput, GroupInput, Routed

#: Sent instead of a batch size if the sender's batch sizes differ between slots; they follow in another message.
_VARIABLE = -1


@dataclass(kw_only=True)
class RankInput(DistInput):
    """The lookups of one rank, for all ranks, and the sizes of the outputs that it receives.

    Attributes:
        batch_sizes: The batch sizes of all ranks, if each has one for all features; else None.
        slot_batch_sizes: For each of this rank's slots the batch size on each rank, if they differ.
        arrived: For each rank the number of IDs that it sent for each of this rank's slots.
        sent: For each slot of the layout the number of this batch's IDs.
    """

    batch_sizes: list[int] | None
    slot_batch_sizes: list[list[int]] | None
    arrived: list[list[int]]
    sent: list[int]
    strides: list[int]

    @property
    def is_flat(self) -> bool:
        """Whether pooled outputs are flat, as in ``DistInput``."""
        return self.batch_sizes is None


@dataclass(frozen=True, kw_only=True)
class RoutedBatch:
    """A routed batch.

    Attributes:
        routed: ``lengths`` holds one number for each slot and bag, slot by slot.
        lengths: ``[E * B]`` of the pairs (with the largest B, if they differ), for the outputs' assembly.
        strides: For each pair its batch size.
        slot_strides: For each slot of the layout its pair's.
        inverse: As ``DistInput``.
    """

    routed: Routed
    lengths: Tensor
    strides: list[int]
    slot_strides: list[int]
    inverse: Tensor | None


class GroupDist:
    """Sends routed IDs to the ranks of their slots.

    Args:
        layout: The layout of the collection.
        group: The ranks.
        rank: This rank.
        device: The device of lookups and collectives.
        sequence: Whether outputs are rows of single IDs; all IDs of a slot are then one bag.
    """

    def __init__(
        self,
        layout: Layout,
        group: dist.ProcessGroup,
        rank: int,
        device: torch.device,
        *,
        sequence: bool,
    ) -> None:
        self._group = group
        self._rank = rank
        self._device = device
        self._sequence = sequence
        self._world_size = dist.get_world_size(group)
        slots = [slot for _, slot in layout.slots]
        # Groups are in the order of their ranks, so that each rank's slots are adjacent.
        counts = [sum(slot.rank == r for slot in slots) for r in (REPLICATED, *range(self._world_size))]
        self._bounds = list(accumulate(counts, initial=0))
        self._counts = counts[1:]
        self._home_groups = [len(group.slots) for group in layout.groups if group.rank == REPLICATED]
        self._own_groups = [len(group.slots) for group in layout.groups if group.rank == rank]
        largest = max(table.num_embeddings for table in layout.tables)
        self._wire_dtype = torch.int32 if largest <= torch.iinfo(torch.int32).max else torch.int64
        # Permutation from rank-major to slot-major order.
        own = self._counts[rank]
        self._order = [s * own + i for i in range(own) for s in range(self._world_size)]
        self._order_tensor = torch.tensor(self._order, dtype=torch.int32, device=device)

    def __call__(self, batch: RoutedBatch) -> Awaitable[Awaitable[DistInput]]:
        """Send the IDs. The first wait reads the sizes, the second receives the IDs."""
        strides = batch.strides
        per_slot = _sums(batch.routed.lengths, batch.slot_strides)
        uniform = len(set(strides)) == 1
        if self._world_size == 1:
            return self._alone(batch, per_slot, uniform=uniform)
        numbers = []
        for rank in range(self._world_size):
            start, end = self._bounds[rank + 1], self._bounds[rank + 2]
            numbers += [strides[0] if uniform else _VARIABLE, *per_slot[start:end]]
        own = self._counts[self._rank] + 1
        flight = self._tell(numbers, [count + 1 for count in self._counts], own)

        def read() -> Awaitable[DistInput]:
            answer = flight.wait().tolist()
            received = [answer[s * own : (s + 1) * own] for s in range(self._world_size)]
            batch_sizes = [sizes[0] for sizes in received]
            arrived = [sizes[1:] for sizes in received]
            slot_batches = None
            if _VARIABLE in batch_sizes:
                slot_batches = self._slot_batch_sizes(batch.slot_strides)
            return self._send(batch, per_slot, batch_sizes, slot_batches, arrived)

        return Deferred(read)

    def _alone(
        self, batch: RoutedBatch, per_slot: list[int], *, uniform: bool
    ) -> Awaitable[Awaitable[DistInput]]:
        """Return the inputs of the only rank, which has all IDs already."""
        routed, first = batch.routed, self._bounds[1]
        own_strides, arrived = batch.slot_strides[first:], per_slot[first:]
        at_length, at_value = sum(batch.slot_strides[:first]), sum(per_slot[:first])
        received = Routed(
            lengths=self._moved(routed.lengths[at_length:]),
            values=self._moved(routed.values[at_value:]),
            weights=None if routed.weights is None else self._moved(routed.weights[at_value:]),
            restore=[],
            offsets=routed.offsets if self._device.type == "cpu" and not at_length else None,
        )
        slot_batches = None if uniform else [[stride] for stride in own_strides]
        inputs = self._inputs(batch, per_slot, received, batch.strides[:1], slot_batches, [arrived])
        return NoWait(NoWait(inputs))

    def _tell(self, numbers: list[int], sizes: list[int], own: int) -> AllToAll:
        message = torch.tensor(numbers, dtype=torch.int64)
        return AllToAll(self._moved(message), sizes, [own] * self._world_size, self._group)

    def _slot_batch_sizes(self, slot_strides: list[int]) -> list[list[int]]:
        """Return for each of this rank's slots the batch size on each rank; every rank takes part, or none."""
        own = self._counts[self._rank]
        answer = self._tell(slot_strides[self._bounds[1] :], self._counts, own).wait().tolist()
        return [[answer[s * own + i] for s in range(self._world_size)] for i in range(own)]

    def _send(
        self,
        batch: RoutedBatch,
        per_slot: list[int],
        batch_sizes: list[int],
        slot_batches: list[list[int]] | None,
        arrived: list[list[int]],
    ) -> Awaitable[DistInput]:
        routed, slot_strides = batch.routed, batch.slot_strides
        at_length = list(accumulate(slot_strides, initial=0))
        at_value = list(accumulate(per_slot, initial=0))
        weighted = routed.weights is not None
        lengths, values = routed.lengths.to(self._wire_dtype), routed.values.to(self._wire_dtype)
        weights = None if routed.weights is None else _bits(routed.weights, self._wire_dtype)
        parts, send_sizes = [], []
        for rank in range(self._world_size):
            first, end = self._bounds[rank + 1], self._bounds[rank + 2]
            of_rank = [
                lengths[at_length[first] : at_length[end]],
                values[at_value[first] : at_value[end]],
            ]
            if weights is not None:
                of_rank.append(weights[at_value[first] : at_value[end]])
            parts += of_rank
            send_sizes.append(sum(part.size(0) for part in of_rank))
        own_sizes = []
        for s, counts in enumerate(arrived):
            num_bags = (
                batch_sizes[s] * len(counts) if slot_batches is None else sum(b[s] for b in slot_batches)
            )
            own_sizes.append([num_bags, *[sum(counts)] * (2 if weighted else 1)])
        flight = AllToAll(
            self._moved(torch.cat(parts)), send_sizes, [sum(sizes) for sizes in own_sizes], self._group
        )

        def receive() -> RankInput:
            pieces = torch.split(flight.wait(), [size for sizes in own_sizes for size in sizes])
            step = 3 if weighted else 2
            received = Routed(
                lengths=torch.cat(pieces[::step]).to(torch.int64),
                values=torch.cat(pieces[1::step]).to(torch.int64),
                weights=_floats(torch.cat(pieces[2::step])) if weighted else None,
                restore=[],
            )
            return self._inputs(batch, per_slot, received, batch_sizes, slot_batches, arrived)

        return Deferred(receive)

    def _inputs(
        self,
        batch: RoutedBatch,
        per_slot: list[int],
        received: Routed,
        batch_sizes: list[int],
        slot_batches: list[list[int]] | None,
        arrived: list[list[int]],
    ) -> RankInput:
        groups = self._home_inputs(batch.routed, batch.slot_strides, per_slot, slot_batches is not None)
        groups += self._own_inputs(received, batch_sizes, slot_batches, arrived)
        return RankInput(
            groups=groups,
            lengths=self._moved(batch.lengths),
            restore=[self._moved(back) for back in batch.routed.restore],
            batch_sizes=batch_sizes if slot_batches is None else None,
            slot_batch_sizes=slot_batches,
            arrived=arrived,
            sent=per_slot,
            strides=batch.strides,
            inverse=None if batch.inverse is None else self._moved(batch.inverse),
        )

    def _moved(self, tensor: Tensor) -> Tensor:
        """Copy to this rank's device, from page-locked memory so that the copy is asynchronous."""
        if self._device.type != "cuda":
            return tensor.to(self._device)
        return tensor.pin_memory().to(self._device, non_blocking=True)

    def _home_inputs(
        self, routed: Routed, slot_strides: list[int], per_slot: list[int], variable: bool
    ) -> list[GroupInput]:
        num_slots = self._bounds[1]
        if num_slots == 0:
            return []
        num_ids = sum(per_slot[:num_slots])
        here = Routed(
            lengths=self._moved(routed.lengths[: sum(slot_strides[:num_slots])]),
            values=self._moved(routed.values[:num_ids]),
            weights=None if routed.weights is None else self._moved(routed.weights[:num_ids]),
            restore=[],
        )
        strides = slot_strides[:num_slots]
        sizes = [[stride] for stride in strides] if variable else None
        return _by_group(here, self._home_groups, strides, per_slot[:num_slots], sizes)

    def _own_inputs(
        self,
        received: Routed,
        batch_sizes: list[int],
        slot_batches: list[list[int]] | None,
        arrived: list[list[int]],
    ) -> list[GroupInput]:
        num_slots = self._counts[self._rank]
        if num_slots == 0:
            return []
        if self._sequence:
            return self._slot_by_slot(received, arrived)
        if slot_batches is None:
            strides = [[b] * num_slots for b in batch_sizes]
        else:
            strides = [[b[s] for b in slot_batches] for s in range(self._world_size)]
        ordered = self._slot_major(received, strides, arrived)
        per_slot = [sum(counts[i] for counts in arrived) for i in range(num_slots)]
        totals = [sum(of_rank[i] for of_rank in strides) for i in range(num_slots)]
        return _by_group(ordered, self._own_groups, totals, per_slot, slot_batches)

    def _slot_major(self, received: Routed, strides: list[list[int]], arrived: list[list[int]]) -> Routed:
        """Reorder from rank-major to slot-major."""
        if len(strides) == 1 or len(strides[0]) == 1:
            return received
        flat = [b for of_rank in strides for b in of_rank]
        if len(set(flat)) == 1:
            lengths, values, weights = fbgemm.permute_2D_sparse_data(
                self._order_tensor,
                received.lengths.view(len(flat), flat[0]),
                received.values,
                received.weights,
                received.values.size(0),
            )
            return Routed(lengths=lengths.view(-1), values=values, weights=weights, restore=[])
        # Bags as values of segments, then IDs as values of segments.
        lengths = _permuted(received.lengths, flat, self._order)
        counts = [n for of_rank in arrived for n in of_rank]
        values = _permuted(received.values, counts, self._order)
        weights = None if received.weights is None else _permuted(received.weights, counts, self._order)
        return Routed(lengths=lengths, values=values, weights=weights, restore=[])

    def _slot_by_slot(self, received: Routed, arrived: list[list[int]]) -> list[GroupInput]:
        """Return each slot's IDs of all senders, in one bag."""
        pieces = torch.split(received.values, [n for counts in arrived for n in counts])
        step = len(arrived[0])
        groups = []
        start = 0
        for num_slots in self._own_groups:
            slots = range(start, start + num_slots)
            counts = [sum(of_rank[i] for of_rank in arrived) for i in slots]
            values = torch.cat([pieces[s * step + i] for i in slots for s in range(self._world_size)])
            offsets = torch.tensor([0, *accumulate(counts)], dtype=torch.int64, device=self._device)
            groups.append(GroupInput(values=values, offsets=offsets, weights=None, ids_per_slot=counts))
            start += num_slots
        return groups


def _by_group(
    ids: Routed,
    groups: Sequence[int],
    slot_strides: Sequence[int],
    per_slot: Sequence[int],
    batch_sizes: list[list[int]] | None,
) -> list[GroupInput]:
    """Split slot-major IDs into groups of slots."""
    found = []
    known = ids.offsets if len(groups) == 1 else None
    slot = bag = value = 0
    for num_slots in groups:
        counts = list(per_slot[slot : slot + num_slots])
        num_bags, num_ids = sum(slot_strides[slot : slot + num_slots]), sum(counts)
        weights = None if ids.weights is None else ids.weights[value : value + num_ids]
        found.append(
            GroupInput(
                values=ids.values[value : value + num_ids],
                offsets=lengths_to_offsets(ids.lengths[bag : bag + num_bags]) if known is None else known,
                weights=weights,
                ids_per_slot=counts,
                batch_sizes=None if batch_sizes is None else batch_sizes[slot : slot + num_slots],
            )
        )
        slot, bag, value = slot + num_slots, bag + num_bags, value + num_ids
    return found


def _sums(lengths: Tensor, strides: Sequence[int]) -> list[int]:
    """Return the number of IDs of each slot. Reads the lengths, which does not block in host memory."""
    if len(set(strides)) == 1:
        per_slot: list[int] = lengths.view(len(strides), strides[0]).sum(dim=1).tolist()
        return per_slot
    ends = lengths_to_offsets(lengths)
    bounds = torch.tensor([0, *accumulate(strides)], device=lengths.device)
    found: list[int] = ends.index_select(0, bounds).diff().tolist()
    return found


def _permuted(data: Tensor, sizes: list[int], order: list[int]) -> Tensor:
    parts = torch.split(data, sizes)
    return torch.cat([parts[i] for i in order])


def _bits(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Reinterpret float32 numbers as integers of the wire's dtype."""
    return weights.view(torch.int32).to(dtype)


def _floats(bits: Tensor) -> Tensor:
    return bits.to(torch.int32).view(torch.float32)
