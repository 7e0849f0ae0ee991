"""The transport between the devices of one process, and the int-nbit kernels that it serves.

Shape letters: B batch, D embedding dim, E (feature, table) pairs, P padded dim, S slots, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recsys.lookup import IntNBitLookup, LookupSlot
from recsys.sharding.device_rows import DeviceRows, table_path
from recsys.sharding.features import CheckedIds
from recsys.sharding.inputs import DistInput
from recsys.sharding.layout import Group, Layout, Piece, pooled_pieces
from recsys.sharding.local_dist import LocalInputDist, send


class LocalTransport(nn.Module):
    """One batch goes out from host memory to the devices of this process; outputs come together on the first.

    Args:
        layout: of the collection.
        devices: rank by rank.
        sequence: whether outputs are rows of single IDs.
        output_dtype: of assembled outputs.
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

    def input_dist(self, checked: CheckedIds) -> DistInput:
        """Split a batch. Everything stays in host memory; ``ready`` moves it.

        Raises:
            ValueError: the features' batch sizes differ.
        """
        if checked.strides is not None:
            raise ValueError(
                "features: got a variable batch, expected one batch size; recsys.dedup.expand makes it one"
            )
        split: DistInput = self.dist(checked.lengths, checked.offsets, checked.values, checked.weights)
        return split

    def ready(self, inputs: DistInput) -> DistInput:
        """The parts, sent to the devices."""
        send([(inputs, self._layout, self.needs_lengths)], [], self._devices)
        return inputs

    def pooled(self, outputs: Sequence[Tensor], inputs: DistInput) -> Tensor:
        """The groups' outputs side by side, in the order of the pairs: ``[B, sum of D]``."""
        gathered = self._gather(outputs)
        parts = [self._piece(piece, gathered, inputs) for piece in self._pieces]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def rows(self, outputs: Sequence[Tensor], inputs: DistInput) -> list[list[Tensor]]:
        """For each group and slot the rows that it found, ``[N of the slot, width]``."""
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
        return found

    def _gather(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """The groups' outputs on the first rank's device."""
        home = self._devices[0]
        devices = [self._devices[group.rank] for group in self._layout.groups]
        # Host memory is read at once, so a copy to it must be waited for; a device's stream orders the others.
        no_wait = home.type != "cpu"
        return [
            out if device == home else out.to(home, non_blocking=no_wait)
            for out, device in zip(outputs, devices, strict=True)
        ]

    def _piece(self, piece: Piece, gathered: list[Tensor], inputs: DistInput) -> Tensor:
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
    """The lookup of a group in a rank's rows.

    Args:
        layout: of the collection.
        group: one of its groups.
        rank: where the rows lie.
        path: the collection's path in its model.
        output_dtype: of the collection.
    """
    # Parts of a sum are rounded once, after they were added.
    dtype = torch.float32 if group.partial else output_dtype
    slots = []
    for slot in group.slots:
        table = table_path(path, layout.table_of(slot).name)
        offset = rank.layout.offset_of(table, slot.columns[0], slot.row_start)
        slots.append(LookupSlot(row_format=layout.row_format(slot), offset_bytes=offset))
    return IntNBitLookup(slots, group.pooling, dtype, rank.rows, rank.layout.row_alignment, rank.device)
