"""Collections as leaves of a trace: what they look up is known, and need not be read from operators.

Shape letters: B rows or contexts, F features, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from export.graph.crossing import crossings_in_program
from export.graph.inputs.computed import RequestFeatures, check_computed
from export.graph.prepared import PreparedModel
from export.graph.ranking import RankingCollection, RankingFeatures, jagged_places
from export.lower.bags import ComputedIds, FlatSpace, Lookup, Rows, Slot, ids_space
from export.lower.values import (
    Join,
    Part,
    Space,
    Value,
)
from recsys.configs import BaseEmbeddingConfig, EmbeddingBagConfig, PoolingType, tables_with
from recsys.embedding import EmbeddingBagCollection
from recsys.inputs.signature import IdPolicy
from recsys.jagged.keyed import KeyedTensor
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor
from recsys.rows.format import SPARSE_TYPE_CODES
from recsys.sharding.plan.layout import make_layout
from recsys.sharding.plan.sharding_types import table_wise
from recsys.sharding.sharded import ShardedCollection

_POOLING_CODES = {PoolingType.SUM: 0, PoolingType.MEAN: 1}


def _numbers(num_rows: int, width: int) -> Tensor:
    """Return numbers of which none is like another, ``[num_rows, width]``."""
    return torch.arange(num_rows * width).sin().view(num_rows, width)


def looked_up(lengths: Tensor, num_features: int, width: int, collection: str) -> Tensor:
    """Stand for the output of a collection in a trace, ``[B, width]``.

    Args:
        lengths: ``[F * B]`` int64.
        num_features: F.
        width: The columns of the output.
        collection: The key of the call, in ``Leaves.calls``.
    """
    del collection
    return _numbers(lengths.size(0) // num_features, width)


def rows_looked_up(values: Tensor, ones: Tensor, width: int, collection: str) -> Tensor:
    """Stand for the rows of the IDs of a feature in a trace, ``[N, width]``.

    Args:
        values: ``[N]`` int64.
        ones: ``[N]`` int64: the lengths of bags that hold one ID each.
        width: The columns of the output.
        collection: The key of the call, in ``Leaves.calls``.
    """
    del ones, collection
    return _numbers(values.size(0), width)


def computed_looked_up(
    lengths: Tensor, values: Tensor, weights: Tensor | None, num_features: int, width: int, collection: str
) -> Tensor:
    """Stand for what a collection looks up by IDs that the model computes in a trace, ``[B, width]``.

    Args:
        lengths: ``[F * B]`` int64.
        values: ``[N]`` int64.
        weights: ``[N]``; None without.
        num_features: F.
        width: The columns of the output.
        collection: The key of the call, in ``Leaves.calls``.
    """
    del values, weights, collection
    return _numbers(lengths.size(0) // num_features, width)


def computed_rows_looked_up(
    lengths: Tensor, values: Tensor, ones: Tensor, width: int, collection: str
) -> Tensor:
    """Stand for the rows of IDs that the model computes in a trace, ``[N, width]``.

    Args:
        lengths: ``[B]`` int64.
        values: ``[N]`` int64.
        ones: As of ``rows_looked_up``.
        width: The columns of the output.
        collection: The key of the call, in ``Leaves.calls``.
    """
    del lengths, ones, collection
    return _numbers(values.size(0), width)


def rows_expanded(values: Tensor, row_context: Tensor, lengths: Tensor) -> Tensor:
    """Return the rows of contexts, for the rows that share them.

    Args:
        values: ``[N, width]``.
        row_context: ``[B]`` int64.
        lengths: ``[Q]`` int64.
    """
    return values.index_select(0, jagged_places(lengths, row_context))


class LookedUpByContext(RankingCollection):
    """The two parts of a collection in a ranking form as leaves of a trace."""

    def _sequences(
        self,
        features: RankingFeatures,
        from_context: Mapping[str, JaggedTensor],
        from_rows: Mapping[str, JaggedTensor],
    ) -> dict[str, JaggedTensor]:
        picked = features.expansion.row_context
        found = dict(from_rows)
        for name, jagged in from_context.items():
            lengths = jagged.lengths().index_select(0, picked)
            found[name] = JaggedTensor(
                rows_expanded(jagged.values(), picked, jagged.lengths()), lengths=lengths
            )
        return found


fx.wrap("computed_looked_up")
fx.wrap("computed_rows_looked_up")
fx.wrap("looked_up")
fx.wrap("rows_expanded")
fx.wrap("rows_looked_up")
LEAVES = (looked_up, rows_looked_up, computed_looked_up, computed_rows_looked_up)


@dataclass(frozen=True, kw_only=True)
class Leaves:
    """The collections of a model as leaves of a trace.

    Attributes:
        names: The features of each space, in the order of the batch.
        modules: By path, what stands for the collections.
        calls: By key, what each call looks up in a space.
    """

    names: Mapping[Space, list[str]]
    modules: dict[str, nn.Module] = field(default_factory=dict)
    calls: dict[str, Callable[[fx.Node, Space], Value | Rows]] = field(default_factory=dict)


class LookedUp(ShardedCollection):
    """A collection as a leaf of a trace.

    Args:
        path: Its path.
        tables: Its tables.
        prepared: The model.
        leaves: Where its calls are noted.

    Raises:
        NotLoweredError: No step looks up what it does.
    """

    def __init__(
        self, path: str, tables: Sequence[BaseEmbeddingConfig], prepared: PreparedModel, leaves: Leaves
    ) -> None:
        collection = prepared.collections[path]
        layout = make_layout(tables, {table.name: table_wise(table, 0) for table in tables}, 1)
        nothing: Any = nn.Identity()
        super().__init__(layout, nothing, nothing, [])
        self.path = path
        self._prepared = prepared
        self._leaves = leaves
        self.sequence = not isinstance(collection, EmbeddingBagCollection)
        self._is_weighted = path in prepared.stored.weighted
        self._names = [pair.name for pair in layout.pairs]
        self._dims = [layout.tables[pair.table].embedding_dim for pair in layout.pairs]

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor | dict[str, JaggedTensor]:
        """Return what stands for the pooled rows, in the order of the pairs, or for those of all IDs."""
        if not isinstance(features, RequestFeatures):
            return self._of_computed(features)
        argument = features.argument
        if self.sequence:
            return {name: self._jagged(i, argument, features) for i, name in enumerate(self._names)}
        key = f"{self.path}:{argument}:{','.join(self._names)}"
        self._leaves.calls[key] = lambda _, space: self._value(
            lambda feature: self._index(argument, feature, space), space, None
        )
        values: Tensor = looked_up(features.lengths(), len(features.keys()), sum(self._dims), key)
        return KeyedTensor(self._names, self._dims, values)

    def _of_computed(self, features: KeyedJaggedTensor) -> KeyedTensor | dict[str, JaggedTensor]:
        """Return what stands for the pooled rows of IDs that the model computes, or for those of all IDs."""
        if self.sequence:
            return {name: self._jagged_of_computed(i, features) for i, name in enumerate(self._names)}
        names = list(features.keys())
        key = f"{self.path}:computed:{len(self._leaves.calls)}"

        def call(node: fx.Node, space: Space) -> Value:
            lengths, values, weights = node.args[:3]
            assert isinstance(lengths, fx.Node)
            assert isinstance(values, fx.Node)
            assert weights is None or isinstance(weights, fx.Node)
            ids = ComputedIds(lengths=lengths, values=values, weights=weights, num_features=len(names))
            return self._value(names.index, space, ids)

        self._leaves.calls[key] = call
        weights = features.weights_or_none() if self._is_weighted else None
        found: Tensor = computed_looked_up(
            features.lengths(), features.values(), weights, len(names), sum(self._dims), key
        )
        return KeyedTensor(self._names, self._dims, found)

    def _jagged_of_computed(self, i: int, features: KeyedJaggedTensor) -> JaggedTensor:
        """Return what stands for the rows of the IDs of a pair that the model computes."""
        of_feature, dim = features[self.layout.pairs[i].feature], self._dims[i]
        key = f"{self.path}:computed:{len(self._leaves.calls)}"

        def call(node: fx.Node, space: Space) -> Rows:
            lengths, values, ones = node.args[:3]
            assert isinstance(lengths, fx.Node)
            assert isinstance(values, fx.Node)
            assert isinstance(ones, fx.Node)
            ids = ComputedIds(lengths=lengths, values=values, weights=None, num_features=1)
            return self._rows(i, 0, space, self._flat(i, values, ones), ids)

        self._leaves.calls[key] = call
        lengths, ids = of_feature.lengths(), of_feature.values()
        values: Tensor = computed_rows_looked_up(lengths, ids, torch.ones_like(ids), dim, key)
        return JaggedTensor(values, lengths=lengths)

    def _index(self, argument: str, feature: str, space: Space) -> int:
        """Return the position of a feature among those of a space."""
        return self._leaves.names[space].index(self._prepared.input_mapping.wire_name(argument, feature))

    def _jagged(self, i: int, argument: str, features: KeyedJaggedTensor) -> JaggedTensor:
        """Return what stands for the rows of the IDs of a pair."""
        pair, dim = self.layout.pairs[i], self._dims[i]
        of_feature = features[pair.feature]
        key = f"{self.path}:{argument}:{self._names[i]}"
        self._leaves.calls[key] = lambda node, space: self._rows_of(i, argument, node, space)
        ids = of_feature.values()
        values: Tensor = rows_looked_up(ids, torch.ones_like(ids), dim, key)
        return JaggedTensor(values, lengths=of_feature.lengths())

    def _rows_of(self, i: int, argument: str, node: fx.Node, space: Space) -> Rows:
        values, ones = node.args[:2]
        assert isinstance(values, fx.Node)
        assert isinstance(ones, fx.Node)
        feature = self._index(argument, self.layout.pairs[i].feature, space)
        return self._rows(i, feature, space, self._flat(i, values, ones), None)

    def _rows(self, i: int, feature: int, bags: Space, flat: Value, computed: ComputedIds | None) -> Rows:
        """Return the rows of the IDs of a pair."""
        found = self._slots_of(feature, self.layout.tables[self.layout.pairs[i].table], 0)
        return Rows(
            # Each block of columns is read by itself.
            slots=tuple(replace(slot, column=0) for slot, _ in found),
            block_dims=tuple(dim for _, dim in found),
            dims=(sum(dim for _, dim in found),),
            space=ids_space(bags, feature, False),
            flat=flat,
            computed=computed,
        )

    def _flat(self, i: int, values: fx.Node, ones: fx.Node) -> Value:
        """Return the rows of the IDs of a pair side by side: the lookup of bags that hold one ID each."""
        found, kept = self._lookup(lambda _: 0, FlatSpace("ids side by side", values), PoolingType.SUM, [i])
        found.computed = ComputedIds(lengths=ones, values=values, weights=None, num_features=1)
        return _joined([Part(value=found, offset=start, width=width) for start, width in kept])

    def _value(self, index_of: Callable[[str], int], space: Space, computed: ComputedIds | None) -> Value:
        """Return the lookups: one for each run of pairs that are pooled alike.

        Args:
            index_of: Returns the position of a feature among those of the batch.
            space: The space of the batch.
            computed: The batch, if it is not the request's.
        """
        runs: list[tuple[PoolingType, list[int]]] = []
        for i, pair in enumerate(self.layout.pairs):
            table = self.layout.tables[pair.table]
            assert isinstance(table, EmbeddingBagConfig)
            if not runs or runs[-1][0] is not table.pooling:
                runs.append((table.pooling, []))
            runs[-1][1].append(i)
        parts: list[Part] = []
        for pooling, pairs in runs:
            found, kept = self._lookup(index_of, space, pooling, pairs)
            found.computed = computed
            parts += [Part(value=found, offset=start, width=width) for start, width in kept]
        return _joined(parts)

    def _lookup(
        self, index_of: Callable[[str], int], space: Space, pooling: PoolingType, pairs: Sequence[int]
    ) -> tuple[Lookup, list[tuple[int, int]]]:
        """Return a lookup, and the runs of its columns that are no padding."""
        slots: list[Slot] = []
        kept: list[tuple[int, int]] = []
        width = 0
        for i in pairs:
            pair = self.layout.pairs[i]
            for slot, dim in self._slots_of(index_of(pair.feature), self.layout.tables[pair.table], width):
                slots.append(slot)
                if kept and sum(kept[-1]) == slot.column:
                    kept[-1] = (kept[-1][0], kept[-1][1] + dim)
                else:
                    kept.append((slot.column, dim))
                width = slot.column + slot.dim
        found = Lookup(
            dims=(width,),
            space=space,
            slots=tuple(slots),
            pooling=_POOLING_CODES[pooling],
            is_weighted=self._is_weighted,
        )
        return found, kept

    def _slots_of(self, feature: int, table: BaseEmbeddingConfig, column: int) -> list[tuple[Slot, int]]:
        """Return a slot for each block of a table's columns, and its columns without padding."""
        stored = self._prepared.stored
        name = stored.paths[self.path][table.name]
        policy = stored.policies.get(name, IdPolicy.REJECT)
        num_rows = table.num_embeddings
        found = []
        blocks = [block for block in stored.layout.blocks if block.table == name]
        for block in sorted(blocks, key=lambda block: block.column_start):
            dim = block.row_format.dim
            slot = Slot(
                offset=block.offset_bytes,
                num_rows=num_rows + (policy is IdPolicy.ZERO),
                type_code=SPARSE_TYPE_CODES[block.data_type],
                dim=block.row_format.padded_dim,
                column=column,
                modulus={IdPolicy.HASH: num_rows, IdPolicy.FMIX64: -num_rows}.get(policy, 0),
                last_id=num_rows if policy is IdPolicy.ZERO else -1,
                feature=feature,
            )
            found.append((slot, dim))
            column += slot.dim
        return found


def _joined(parts: Sequence[Part]) -> Value:
    """Return parts of values of a space side by side."""
    first = parts[0].value
    if len(parts) == 1 and parts[0].width == first.width:
        return first
    return Join(dims=(sum(part.width for part in parts),), space=first.space, parts=tuple(parts))


def leaves_of(prepared: PreparedModel, *, is_ranking: bool) -> Leaves:
    """Return what stands for the collections of a model in a trace.

    Args:
        prepared: The model.
        is_ranking: Whether for the ranking form.

    Raises:
        NotLoweredError: No step looks up what a collection does.
    """
    context = prepared.signature.context if is_ranking else ()
    names = prepared.input_mapping.wire_names
    leaves = Leaves(
        modules={**prepared.managed.in_program(), **crossings_in_program(prepared.model)},
        names={
            Space.ROWS: [name for name in names if name not in context],
            Space.CONTEXTS: [name for name in names if name in context],
        },
    )
    for path in prepared.collections:
        tables = prepared.stored.tables[path]
        whole = LookedUp(path, tables, prepared, leaves)
        check_computed(whole, prepared.stored.paths[path], prepared.stored.policies)
        leaves.modules[path] = (
            LookedUpByContext(whole, _mixed(whole, prepared, leaves)) if is_ranking else whole
        )
    return leaves


def _mixed(
    whole: LookedUp, prepared: PreparedModel, leaves: Leaves
) -> Mapping[frozenset[str], tuple[ShardedCollection, ShardedCollection]]:
    """Return the two parts of a collection for each set of features of the context that reaches it."""
    path = whole.path
    tables = prepared.stored.tables[path]
    input_mapping = prepared.input_mapping.part(prepared.signature.context)
    features = frozenset(whole.layout.features)
    mixed = {}
    for argument in prepared.input_mapping.collections[path]:
        context = features & frozenset(input_mapping.sparse.get(argument, ()))
        if context and context != features and context not in mixed:
            mixed[context] = (
                LookedUp(path, tables_with(tables, context), prepared, leaves),
                LookedUp(path, tables_with(tables, features - context), prepared, leaves),
            )
    return mixed
