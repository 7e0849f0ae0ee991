"""Sharded collections: ``input_dist → lookup → output_dist``, put together from a layout, a transport and kernels.

Shape letters: B batch, D embedding dim, E (feature, table) pairs, P padded dim, S slots, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from recsys.bounds import BoundsCheckMode
from recsys.configs import BaseEmbeddingConfig
from recsys.jagged import JaggedTensor
from recsys.keyed import KeyedTensor
from recsys.keyed_jagged import KeyedJaggedTensor
from recsys.lookup import IntNBitLookup, LookupSlot
from recsys.sharding.device_rows import DeviceRows, table_path
from recsys.sharding.features import PairIds
from recsys.sharding.layout import Group, Layout, Piece, make_layout, pooled_pieces
from recsys.sharding.local_dist import DistInput, LocalInputDist, send
from recsys.sharding.plan import ParameterSharding, check_plan
from recsys.signature import IdPolicy


@dataclass(frozen=True, kw_only=True)
class ShardedOptions:
    """What a sharded collection does beside its plan.

    Attributes:
        path: the collection's path in its model; names its tables' rows.
        is_weighted: whether every ID comes with a weight.
        output_dtype: of the lookups.
        id_policies: table by table; REJECT where not named. ZERO needs a row of zeros behind the table.
        bounds_check_mode: what becomes of rejected IDs.
    """

    path: str = ""
    is_weighted: bool = False
    output_dtype: torch.dtype = torch.float32
    id_policies: dict[str, IdPolicy] = field(default_factory=dict)
    bounds_check_mode: BoundsCheckMode = BoundsCheckMode.FATAL


class DistributedKeyedJaggedTensor(KeyedJaggedTensor):
    """A batch whose parts have been sent to the devices already, for some collections.

    Args:
        features: the batch in host memory.
        inputs: for each collection its part of the batch.
    """

    def __init__(self, features: KeyedJaggedTensor, inputs: dict[ShardedCollection, DistInput]) -> None:
        super().__init__(
            features.keys(),
            features.values(),
            weights=features.weights_or_none(),
            lengths=features.lengths(),
            stride=features.stride(),
            length_per_key=features.length_per_key_or_none(),
        )
        self.inputs = inputs


class ShardedCollection(nn.Module):
    """What pooled and sequence collections share: everything up to the lookups.

    Args:
        tables: the tables, with the data types of their stored rows.
        plan: how each is cut.
        ranks: where each rank's rows lie; the first rank's device gets the output.
        options: see there.

    Raises:
        PlanError: the plan does not fit the tables or the ranks.
    """

    sequence = False

    def __init__(
        self,
        tables: Sequence[BaseEmbeddingConfig],
        plan: Mapping[str, ParameterSharding],
        ranks: Sequence[DeviceRows],
        options: ShardedOptions,
    ) -> None:
        super().__init__()
        check_plan(tables, plan, len(ranks))
        self.layout = make_layout(
            tables, plan, len(ranks), separate_sums=options.output_dtype is not torch.float32
        )
        self.devices = [rank.device for rank in ranks]
        self.options = options
        self.pair_ids = PairIds(
            self.layout, options.is_weighted, options.id_policies, options.bounds_check_mode
        )
        self.dist = LocalInputDist(self.layout, sequence=self.sequence)
        self.lookups = nn.ModuleList(
            _kernel(self.layout, group, ranks[group.rank], options) for group in self.layout.groups
        )

    @property
    def needs_lengths(self) -> bool:
        """Whether ``output_dist`` reads the bags' lengths."""
        return self.sequence or any(self.layout.divides_mean(slot) for _, slot in self.layout.slots)

    def input_dist(self, features: KeyedJaggedTensor) -> DistInput:
        """Pick, check and split a batch. Everything stays in host memory; ``send`` moves it."""
        checked = self.pair_ids(features)
        split: DistInput = self.dist(checked.lengths, checked.offsets, checked.values, checked.weights)
        return split

    def lookup(self, inputs: DistInput) -> list[Tensor]:
        """Each group's output, on its rank's device."""
        return [
            kernel(group.values, group.offsets, group.weights)
            for kernel, group in zip(self.lookups, inputs.groups, strict=True)
        ]

    def on_devices(self, features: KeyedJaggedTensor) -> DistInput:
        """``input_dist``, and the parts sent to the devices, unless that has been done for the whole model."""
        if isinstance(features, DistributedKeyedJaggedTensor) and self in features.inputs:
            return features.inputs[self]
        inputs = self.input_dist(features)
        send([(inputs, self.layout, self.needs_lengths)], [], self.devices)
        return inputs

    def gather(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """The groups' outputs on the first rank's device."""
        home = self.devices[0]
        devices = [self.devices[group.rank] for group in self.layout.groups]
        # Host memory is read at once, so a copy to it must be waited for; a device's stream orders the others.
        no_wait = home.type != "cpu"
        return [
            out if device == home else out.to(home, non_blocking=no_wait)
            for out, device in zip(outputs, devices, strict=True)
        ]


def _kernel(layout: Layout, group: Group, rank: DeviceRows, options: ShardedOptions) -> IntNBitLookup:
    # Parts of a sum are rounded once, after they were added.
    dtype = torch.float32 if group.partial else options.output_dtype
    slots = []
    for slot in group.slots:
        path = table_path(options.path, layout.table_of(slot).name)
        offset = rank.layout.offset_of(path, slot.columns[0], slot.row_start)
        slots.append(LookupSlot(row_format=layout.row_format(slot), offset_bytes=offset))
    return IntNBitLookup(slots, group.pooling, dtype, rank.rows, rank.layout.row_alignment, rank.device)


class ShardedEmbeddingBagCollection(ShardedCollection):
    """Pooled embeddings of tables that lie on several devices."""

    def __init__(
        self,
        tables: Sequence[BaseEmbeddingConfig],
        plan: Mapping[str, ParameterSharding],
        ranks: Sequence[DeviceRows],
        options: ShardedOptions,
    ) -> None:
        super().__init__(tables, plan, ranks, options)
        self._pieces = pooled_pieces(self.layout)
        self._names = [pair.name for pair in self.layout.pairs]
        self._dims = [self.layout.tables[pair.table].embedding_dim for pair in self.layout.pairs]
        self._group_dims = [
            sum(self.layout.row_format(slot).padded_dim for slot in group.slots)
            for group in self.layout.groups
        ]

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Look up and pool: ``[B, sum of D]`` on the first rank's device, one key per (feature, table).

        Raises:
            ValueError: as ``PairIds``.
        """
        inputs = self.on_devices(features)
        return self.output_dist(self.lookup(inputs), inputs)

    def output_dist(self, outputs: Sequence[Tensor], inputs: DistInput) -> KeyedTensor:
        """Put the groups' outputs side by side, in the order of the pairs."""
        gathered = self.gather(outputs)
        parts = [self._piece(piece, gathered, inputs) for piece in self._pieces]
        return KeyedTensor(self._names, self._dims, parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))

    def _piece(self, piece: Piece, gathered: list[Tensor], inputs: DistInput) -> Tensor:
        columns = [self._columns(gathered[g], g, start, piece.width) for g, start in piece.sources]
        total = columns[0]
        for other in columns[1:]:
            total = total + other
        if piece.mean_of is not None:
            num_pairs = len(self.layout.pairs)
            bags = inputs.lengths.view(num_pairs, inputs.lengths.size(0) // num_pairs)
            total = total / bags[piece.mean_of].clamp(min=1).to(torch.float32).unsqueeze(1)
        partial = self.layout.groups[piece.sources[0][0]].partial
        return total.to(self.options.output_dtype) if partial else total

    def _columns(self, output: Tensor, group: int, start: int, width: int) -> Tensor:
        return output if width == self._group_dims[group] else output.narrow(1, start, width)


class ShardedEmbeddingCollection(ShardedCollection):
    """Sequence embeddings, one row for each ID, of tables that lie on several devices."""

    sequence = True

    def forward(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Look up: for each (feature, table) a JaggedTensor with values ``[N of the feature, D]``.

        Raises:
            ValueError: as ``PairIds``.
        """
        inputs = self.on_devices(features)
        return self.output_dist(self.lookup(inputs), inputs)

    def output_dist(self, outputs: Sequence[Tensor], inputs: DistInput) -> dict[str, JaggedTensor]:
        """Put rows back in the order of the IDs, and columns side by side."""
        found: dict[tuple[int, tuple[int, int]], dict[int, Tensor]] = {}
        entry_of: dict[tuple[int, tuple[int, int]], int | None] = {}
        for group, rows, group_inputs in zip(
            self.layout.groups, self.gather(outputs), inputs.groups, strict=True
        ):
            by_slot: Sequence[Tensor] = [rows]
            if len(group.slots) > 1:
                assert group_inputs.slot_ends is not None
                by_slot = torch.tensor_split(rows, group_inputs.slot_ends)
            for i, slot in enumerate(group.slots):
                columns = by_slot[i]
                if slot.width != self.layout.row_format(slot).padded_dim:
                    columns = columns.narrow(1, 0, slot.width)
                found.setdefault((slot.pair, slot.columns), {})[slot.part] = columns
                entry_of[slot.pair, slot.columns] = slot.entry
        num_pairs = len(self.layout.pairs)
        num_bags = inputs.lengths.size(0) // num_pairs
        result = {}
        for p, pair in enumerate(self.layout.pairs):
            parts = []
            for key in sorted(key for key in found if key[0] == p):
                entry = entry_of[key]
                if entry is None:
                    parts.append(found[key][0])
                else:
                    in_parts = torch.cat([found[key][part] for part in sorted(found[key])])
                    parts.append(in_parts.index_select(0, inputs.restore[entry]))
            values = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
            lengths = inputs.lengths[p * num_bags : (p + 1) * num_bags]
            result[pair.name] = JaggedTensor(values, lengths=lengths)
        return result

    def embedding_dim(self) -> int:
        """D."""
        return self.layout.tables[0].embedding_dim
