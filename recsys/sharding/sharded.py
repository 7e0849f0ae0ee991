"""Sharded collections: ``input_dist → lookup → output_dist``, made of a layout, a transport and kernels.

Shape letters: B batch, D embedding dimension, E (feature, table) pairs, S slots, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from recsys.configs import BaseEmbeddingConfig
from recsys.inputs.signature import IdPolicy
from recsys.jagged.keyed import KeyedTensor
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor
from recsys.kernels.bounds import BoundsCheckMode
from recsys.optim.fused import FusedOptimizer
from recsys.sharding.plan.device_rows import DeviceRows
from recsys.sharding.plan.layout import Layout, make_layout
from recsys.sharding.plan.plan import ParameterSharding, check_plan
from recsys.sharding.plan.sharding_types import without_replicas
from recsys.sharding.table_shards import TableShards
from recsys.sharding.transport.awaitable import Awaitable, LazyAwaitable, NoWait, V, W
from recsys.sharding.transport.inputs import CheckedIds, DistInput, PairIds
from recsys.sharding.transport.local import LocalTransport, int_nbit_kernel


@dataclass(frozen=True, kw_only=True)
class ShardedOptions:
    """Options of a sharded collection other than its plan.

    Attributes:
        path: The collection's path in its model; names its tables' rows.
        is_weighted: Whether every ID comes with a weight.
        output_dtype: The dtype of the lookups.
        id_policies: Policies by table; REJECT by default. ZERO needs a row of zeros after the table.
        bounds_check_mode: How rejected IDs are treated.
    """

    path: str = ""
    is_weighted: bool = False
    output_dtype: torch.dtype = torch.float32
    id_policies: dict[str, IdPolicy] = field(default_factory=dict)
    bounds_check_mode: BoundsCheckMode = BoundsCheckMode.FATAL


class Transport(Protocol):
    """Moves a batch to the shards, and their outputs back.

    ``GroupTransport`` works over a process group, whose ranks have a batch each; ``LocalTransport`` works
    between the devices of one process, which share one batch. Both are ``nn.Module``s. Results are
    awaitables: over a process group collectives may be in progress, between devices the results are available
    at once.
    """

    def input_dist(self, checked: CheckedIds) -> Awaitable[Awaitable[DistInput]]:
        """Route checked IDs to the slots of the layout. The first wait reads sizes, the second brings the IDs."""

    def pooled(self, outputs: Sequence[Tensor], inputs: DistInput) -> Awaitable[Tensor]:
        """Assemble ``[B, sum of D]`` in the order of the pairs."""

    def rows(self, outputs: Sequence[Tensor], inputs: DistInput) -> Awaitable[list[list[Tensor]]]:
        """Return ``[N of the slot, width]`` for each group and slot."""


class DistributedKeyedJaggedTensor(KeyedJaggedTensor):
    """A batch whose parts have already been sent to the shards of some collections.

    Args:
        features: The batch.
        inputs: For each collection its part of the batch.
    """

    def __init__(self, features: KeyedJaggedTensor, inputs: dict[ShardedCollection, DistInput]) -> None:
        variable = features.variable_stride_per_key()
        super().__init__(
            features.keys(),
            features.values(),
            weights=features.weights_or_none(),
            lengths=features.lengths(),
            stride=None if variable else features.stride(),
            stride_per_key_per_rank=features.stride_per_key_per_rank() if variable else None,
            length_per_key=features.length_per_key_or_none(),
            inverse_indices=features.inverse_indices_or_none(),
        )
        self.inputs = inputs


class ShardedCollection(nn.Module):
    """The base of pooled and sequence collections: everything up to the lookups.

    Args:
        layout: The layout of the tables.
        pair_ids: Picks the features and checks their IDs.
        transport: Moves IDs to the shards and outputs back; an ``nn.Module`` too.
        lookups: One kernel for each group that is looked up in this process.
    """

    sequence = False

    def __class_getitem__(cls, item: object) -> type[Self]:
        """Return the class: TorchRec's takes types in brackets."""
        del item
        return cls

    def __init__(
        self, layout: Layout, pair_ids: PairIds, transport: Transport, lookups: Sequence[nn.Module]
    ) -> None:
        super().__init__()
        self.layout = layout
        self.pair_ids = pair_ids
        self.transport: Transport = transport
        self.lookups = nn.ModuleList(lookups)
        #: By name, if tables are trained; another child holds their parameters and names in state dicts.
        self.trained_tables: Mapping[str, TableShards] = {}
        #: The optimizer of tables trained in the backward pass; None if nothing is trained.
        self.fused_optimizer: FusedOptimizer | None = None

    @classmethod
    def over_devices(
        cls,
        tables: Sequence[BaseEmbeddingConfig],
        plan: Mapping[str, ParameterSharding],
        ranks: Sequence[DeviceRows],
        options: ShardedOptions,
    ) -> Self:
        """Return a collection of quantized tables on the devices of this process.

        Args:
            tables: The tables, with the data types of their stored rows.
            plan: The sharding of each table.
            ranks: The rows of each rank; the first rank's device gets the output.
            options: Further options.

        Raises:
            PlanError: The plan does not fit the tables or the ranks.
        """
        check_plan(tables, plan, len(ranks))
        dtype = options.output_dtype
        layout = make_layout(
            tables,
            without_replicas(tables, plan),
            len(ranks),
            separate_sums=dtype is not torch.float32,
        )
        pair_ids = PairIds(layout, options.is_weighted, options.id_policies, options.bounds_check_mode)
        devices = [rank.device for rank in ranks]
        transport = LocalTransport(layout, devices, sequence=cls.sequence, output_dtype=dtype)
        kernels = [
            int_nbit_kernel(layout, group, ranks[group.rank], options.path, dtype) for group in layout.groups
        ]
        return cls(layout, pair_ids, transport, kernels)

    def reset_rows(self, table: str, rows: Tensor, values: Tensor) -> None:
        """Overwrite rows of a trained table on all ranks, and reset their optimizer state.

        Args:
            table: Its name.
            rows: ``[N]`` int64 in host memory, rows of the whole table; the same on every rank.
            values: ``[N, D]`` float32 in host memory; the same on every rank.

        Raises:
            KeyError: The table does not exist, or is not trained here.
        """
        if table not in self.trained_tables:
            raise KeyError(f"table {table!r} is not trained here; there are {sorted(self.trained_tables)}")
        self.trained_tables[table].reset_rows(rows, values)

    @property
    def needs_lengths(self) -> bool:
        """Whether ``output_dist`` reads the bags' lengths."""
        assert isinstance(self.transport, LocalTransport)
        return self.transport.needs_lengths

    def input_dist(self, features: KeyedJaggedTensor) -> Awaitable[Awaitable[DistInput]]:
        """Pick, check and route a batch. The first wait reads sizes, the second brings the IDs.

        Raises:
            ValueError: The features do not fit, as in ``PairIds``.
        """
        return self.transport.input_dist(self.pair_ids(features))

    def split(self, features: KeyedJaggedTensor) -> DistInput:
        """Pick, check and split a batch for the devices of this process; everything stays in host memory.

        Raises:
            ValueError: The features do not fit, as in ``PairIds``.
        """
        assert isinstance(self.transport, LocalTransport)
        return self.transport.split(self.pair_ids(features))

    def lookup(self, inputs: DistInput) -> list[Tensor]:
        """Return the output of each group that is looked up here, on its rank's device."""
        if self.fused_optimizer is not None:
            # FBGEMM reads the learning rate at the lookup, not in the backward pass.
            self.fused_optimizer.apply_learning_rates()
        return [
            kernel(group.values, group.offsets, group.weights, **group.sizes())
            for kernel, group in zip(self.lookups, inputs.groups, strict=True)
        ]

    def inputs_of(self, features: KeyedJaggedTensor) -> DistInput:
        """Return the inputs: those already sent for the whole model, or the result of ``input_dist``."""
        if isinstance(features, DistributedKeyedJaggedTensor) and self in features.inputs:
            return features.inputs[self]
        return self.input_dist(features).wait().wait()

    def forward(self, features: KeyedJaggedTensor) -> Any:
        """Look up. Over a process group the result is lazy: its first use waits for it.

        Raises:
            ValueError: As ``PairIds``.
        """
        inputs = self.inputs_of(features)
        return self.output_dist(self.lookup(inputs), inputs)

    def output_dist(self, outputs: Sequence[Tensor], inputs: DistInput) -> Any:
        """Combine the outputs of all shards."""
        raise NotImplementedError


class ShardedEmbeddingBagCollection(ShardedCollection):
    """Pooled embeddings: ``KeyedTensor`` ``[B, sum of D]``, one key per (feature, table), in the tables' order."""

    def __init__(
        self, layout: Layout, pair_ids: PairIds, transport: Transport, lookups: Sequence[nn.Module]
    ) -> None:
        super().__init__(layout, pair_ids, transport, lookups)
        self._names = [pair.name for pair in layout.pairs]
        self._dims = [layout.tables[pair.table].embedding_dim for pair in layout.pairs]

    def output_dist(self, outputs: Sequence[Tensor], inputs: DistInput) -> Any:
        """Put the groups' outputs side by side, in the order of the pairs."""

        def keyed(values: Tensor) -> KeyedTensor:
            return KeyedTensor(self._names, self._dims, self._full_batch(values, inputs))

        return _then(self.transport.pooled(outputs, inputs), keyed)

    def _full_batch(self, values: Tensor, inputs: DistInput) -> Tensor:
        """Expand each pair's batch to the full one; flat if batch sizes differ on some rank."""
        if inputs.inverse is None and not inputs.is_flat:
            return values
        if not inputs.is_flat:
            pooled = torch.split(values, self._dims, dim=1)
        else:
            assert inputs.strides is not None
            sizes = [stride * dim for stride, dim in zip(inputs.strides, self._dims, strict=True)]
            flat = torch.split(values, sizes)
            pooled = tuple(part.view(-1, dim) for part, dim in zip(flat, self._dims, strict=True))
        if inputs.inverse is None:
            if len({rows.size(0) for rows in pooled}) > 1:
                raise ValueError(
                    f"features: got batch sizes {[rows.size(0) for rows in pooled]} without inverse_indices, expected "
                    "them, or one batch size: pooled embeddings stand side by side"
                )
            return torch.cat(pooled, dim=1)
        return torch.cat(
            [rows.index_select(0, inverse) for rows, inverse in zip(pooled, inputs.inverse, strict=True)],
            dim=1,
        )


class ShardedEmbeddingCollection(ShardedCollection):
    """Sequence embeddings, one row for each ID: for each (feature, table) a JaggedTensor ``[N of the feature, D]``."""

    sequence = True

    def output_dist(self, outputs: Sequence[Tensor], inputs: DistInput) -> Any:
        """Put rows back in the order of the IDs, and columns side by side."""

        def put_together(by_slot: list[list[Tensor]]) -> dict[str, JaggedTensor]:
            return self._put_together(by_slot, inputs)

        return _then(self.transport.rows(outputs, inputs), put_together)

    def _put_together(self, by_slot: list[list[Tensor]], inputs: DistInput) -> dict[str, JaggedTensor]:
        found: dict[tuple[int, tuple[int, int]], dict[int, Tensor]] = {}
        entry_of: dict[tuple[int, tuple[int, int]], int | None] = {}
        for group, rows in zip(self.layout.groups, by_slot, strict=True):
            for slot, columns in zip(group.slots, rows, strict=True):
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
            stride = num_bags if inputs.strides is None else inputs.strides[p]
            lengths = inputs.lengths[p * num_bags : p * num_bags + stride]
            result[pair.name] = JaggedTensor(values, lengths=lengths)
        return result

    def embedding_dim(self) -> int:
        """Return D."""
        return self.layout.tables[0].embedding_dim


def _then(result: Awaitable[W], finish: Callable[[W], V]) -> V | LazyAwaitable[V]:
    """Apply ``finish`` to a result: at once if the result is there, else when it is first used."""
    if isinstance(result, NoWait):
        return finish(result.wait())
    return LazyAwaitable(lambda: finish(result.wait()))
