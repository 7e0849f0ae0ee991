"""The ranking form of a model: a context's features are looked up once, and expanded to its rows after pooling.

Shape letters: B rows, Q contexts, F features, N number of IDs, D embedding dim.

Only collections know of contexts: the model's other layers get B rows everywhere. A sparse argument that
holds features of the context is a ``RankingFeatures``, and a ``RankingCollection`` replaces each collection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn

from recsys.errors import ExportError
from recsys.jagged.keyed import KeyedTensor
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor
from recsys.ops import lengths_to_offsets
from recsys.sharding.plan.layout import Layout
from recsys.sharding.sharded import DistributedKeyedJaggedTensor, ShardedCollection
from recsys.sharding.transport.inputs import DistInput

# The attributes of a KeyedJaggedTensor's contents.
_CONTENTS = {"_values", "_weights", "_lengths", "_offsets", "_length_per_key", "_jt_dict"}


@dataclass(frozen=True, kw_only=True)
class Expanded:
    """A node of a traced graph that repeats what contexts have for the rows that share them.

    Attributes:
        dims: The sizes of a row, or of what is there for an ID; None for the lengths of bags.
        bags: The argument and the feature whose lengths these are, or whose IDs; None for what is there for each row.
    """

    dims: tuple[int, ...] | None
    bags: tuple[str, str] | None = None


@dataclass(kw_only=True)
class Expansion:
    """The context of each row of a batch.

    Attributes:
        on_host: ``[B]`` int64 in host memory, ``0 <= number < Q``.
        row_context: The same on the device where outputs are assembled.
        home: That device.
        places: For features of the context by argument and name, ``[N of the B rows]`` int64, the positions
            of the rows' IDs among the Q contexts' IDs; only for unpooled features.
        num_contexts: Q.
        expanded: By the node, what is expanded in a trace.
    """

    on_host: Tensor
    row_context: Tensor
    home: torch.device
    num_contexts: int
    places: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    expanded: dict[str, Expanded] = field(default_factory=dict)

    def of_rows(self, tensor: Tensor, dims: tuple[int, ...]) -> Tensor:
        """Return ``[B, *dims]`` of what contexts have, ``[Q, *dims]``."""
        return self._noted(tensor.index_select(0, self.row_context), Expanded(dims=dims))

    def lengths_of_rows(self, lengths: Tensor, bags: tuple[str, str]) -> Tensor:
        """Return ``[B]`` of the lengths of a feature's bags, ``[Q]``."""
        found = lengths.index_select(0, self.row_context)
        return self._noted(found, Expanded(dims=None, bags=bags))

    def of_ids(self, tensor: Tensor, places: Tensor, dims: tuple[int, ...], bags: tuple[str, str]) -> Tensor:
        """Return for the IDs of the B rows what is there for those of the contexts, ``[N, *dims]``."""
        return self._noted(tensor.index_select(0, places), Expanded(dims=dims, bags=bags))

    def _noted(self, found: Tensor, what: Expanded) -> Tensor:
        made: Any = found
        if isinstance(made, fx.Proxy):
            self.expanded[made.node.name] = what
        return found

    def to_send(self) -> tuple[DistInput, Layout, bool]:
        """Return the tensors for the first device, in the form that ``send`` accepts, without groups."""
        whole = DistInput(groups=[], lengths=self.on_host, restore=list(self.places.values()))
        return whole, Layout(tables=(), pairs=(), entries=(), groups=()), True

    def receive(self, sent: DistInput) -> None:
        """Take the tensors of ``to_send`` after ``send``."""
        self.row_context = sent.lengths
        self.places = dict(zip(self.places, sent.restore, strict=True))


class RankingFeatures(KeyedJaggedTensor):
    """A sparse argument of B rows, some of whose features are given for Q contexts.

    Collections split it. It has no values itself: any other access fails the export.

    Args:
        argument: Its name, for messages.
        keys: All features, in the argument's order.
        context: The context's features, batch size Q.
        rows: The others, batch size B; None if there are none.
        expansion: From contexts to rows.
    """

    def __init__(
        self,
        argument: str,
        keys: Sequence[str],
        context: KeyedJaggedTensor,
        rows: KeyedJaggedTensor | None,
        expansion: Expansion,
    ) -> None:
        # The base's constructor is not called: __getattr__ handles the contents that it would set.
        self.argument = argument
        self.context = context
        self.context_keys = context.keys()
        self.rows = rows
        self.expansion = expansion
        self._keys = list(keys)
        self._stride = expansion.on_host.size(0)
        self._variable = None

    def __getattr__(self, name: str) -> NoReturn:
        if name in _CONTENTS:
            self._refuse(self.context_keys)
        raise AttributeError(name)

    def _refuse(self, features: Sequence[str]) -> NoReturn:
        raise ExportError(
            f"forward({self.argument}): features {list(features)} of the context are read outside of a collection, "
            "expected only collections to read them in a ranking form: take what you need from what a collection "
            "returns, give them an argument of their own, or leave them out of --context"
        )

    def __getitem__(self, key: str) -> JaggedTensor:
        if key in self.context_keys:
            return self._of_rows(key)
        if self.rows is None or key not in self._keys:
            raise KeyError(f"key {key!r} is not in the KeyedJaggedTensor; it has {self._keys}")
        return self.rows[key]

    def _of_rows(self, key: str) -> JaggedTensor:
        """Return the bags of a feature of the context, for the rows that share them."""
        if self.expansion.home.type != "cpu":
            self._refuse([key])
        of_contexts, bags = self.context[key], (self.argument, key)
        places, weights = self.places(key), of_contexts.weights_or_none()
        return JaggedTensor(
            self.expansion.of_ids(of_contexts.values(), places, (), bags),
            lengths=self.expansion.lengths_of_rows(of_contexts.lengths(), bags),
            weights=None if weights is None else weights.index_select(0, places),
        )

    def _select(self, indices: list[int]) -> KeyedJaggedTensor:
        keys = [self._keys[i] for i in indices]
        context = [self.context.index_per_key()[key] for key in keys if key in self.context_keys]
        rows: KeyedJaggedTensor | None = None
        if self.rows is not None and len(context) < len(keys):
            at = self.rows.index_per_key()
            rows = self.rows.permute([at[key] for key in keys if key in at])
            if not context:
                return rows
        return RankingFeatures(self.argument, keys, self.context.permute(context), rows, self.expansion)

    def mapped(self, mapping: Callable[[KeyedJaggedTensor], KeyedJaggedTensor]) -> RankingFeatures:
        """Return the same with the IDs of both parts mapped separately."""
        rows = None if self.rows is None else mapping(self.rows)
        return RankingFeatures(self.argument, self._keys, mapping(self.context), rows, self.expansion)

    def sent(self, inputs: dict[ShardedCollection, Any]) -> RankingFeatures:
        """Return the same with the collections' parts that were already sent to the devices."""
        return self.mapped(lambda part: DistributedKeyedJaggedTensor(part, inputs))

    def places(self, feature: str) -> Tensor:
        """Return the positions of the rows' IDs among the contexts' IDs of a feature, ``[N]`` int64, at home.

        The lengths must have been checked.
        """
        self.prepare(feature, self.expansion.home)
        return self.expansion.places[self.argument, feature]

    def prepare(self, feature: str, device: torch.device) -> None:
        """Compute the positions of a feature's IDs, if not done yet, and move them to a device."""
        key = (self.argument, feature)
        if key not in self.expansion.places:
            at, stride = self.context.index_per_key()[feature], self.context.stride()
            lengths = self.context.lengths()[at * stride : (at + 1) * stride]
            places = jagged_places(lengths, self.expansion.on_host)
            self.expansion.places[key] = places if device.type == "cpu" else places.to(device)


def jagged_places(lengths: Tensor, picked: Tensor) -> Tensor:
    """Return the positions of the picked bags' values among all values.

    Args:
        lengths: ``[Q]`` int64 of all bags.
        picked: ``[B]`` int64, bags in any order, with repetitions.

    Returns:
        ``[N of the picked bags]`` int64.

    Raises:
        IndexError: The bag does not exist; under TorchScript a RuntimeError.
    """
    picked_lengths = lengths.index_select(0, picked)
    starts = lengths_to_offsets(lengths).index_select(0, picked)
    shift = starts - lengths_to_offsets(picked_lengths)[:-1]
    shift_of_value = torch.repeat_interleave(shift, picked_lengths)
    return shift_of_value + torch.arange(shift_of_value.size(0))


class RankingCollection(nn.Module):
    """Replaces a collection in a ranking form: the same tables, looked up in two parts.

    Args:
        whole: The collection, for calls whose features are all of the context, or all not.
        mixed: For other calls: by the features of the context, the collection of their tables and the
            collection of the others'. All read the same stored rows.
    """

    def __init__(
        self,
        whole: ShardedCollection,
        mixed: Mapping[frozenset[str], tuple[ShardedCollection, ShardedCollection]],
    ) -> None:
        super().__init__()
        self.whole = whole
        self.context_parts = nn.ModuleList([context for context, _ in mixed.values()])
        self.row_parts = nn.ModuleList([rows for _, rows in mixed.values()])
        self._mixed = list(mixed)
        self._features = frozenset(whole.layout.features)

    def parts(self, features: KeyedJaggedTensor) -> Iterator[tuple[ShardedCollection, KeyedJaggedTensor]]:
        """Yield the collections that look up a batch, each with its part."""
        context, rows = self._split(features)
        if context is not None:
            assert isinstance(features, RankingFeatures)
            yield context, features.context
        if rows is not None:
            yield rows, _rows_of(features)

    def prepare(self, features: KeyedJaggedTensor) -> None:
        """Compute the positions of IDs that are expanded one by one, to send them with the batch."""
        if self.whole.sequence and isinstance(features, RankingFeatures):
            for feature in sorted(self._context(features)):
                features.prepare(feature, torch.device("cpu"))

    def _context(self, features: KeyedJaggedTensor) -> frozenset[str]:
        if not isinstance(features, RankingFeatures):
            return frozenset()
        return self._features & frozenset(features.context_keys)

    def _split(
        self, features: KeyedJaggedTensor
    ) -> tuple[ShardedCollection | None, ShardedCollection | None]:
        context = self._context(features)
        if not context:
            return None, self.whole
        if context == self._features:
            return self.whole, None
        if context not in self._mixed:
            raise ExportError(
                f"features: got {features.keys()}, expected all that the collection looks up: {sorted(self._features)}"
            )
        at = self._mixed.index(context)
        of_context, of_rows = self.context_parts[at], self.row_parts[at]
        assert isinstance(of_context, ShardedCollection)
        assert isinstance(of_rows, ShardedCollection)
        return of_context, of_rows

    def forward(self, features: KeyedJaggedTensor) -> Any:
        """Look up B rows, like the replaced collection."""
        context, rows = self._split(features)
        from_rows = None if rows is None else rows(_rows_of(features))
        if context is None:
            return from_rows
        assert isinstance(features, RankingFeatures)
        from_context = context(features.context)
        if self.whole.sequence:
            return self._sequences(features, from_context, from_rows or {})
        width = sum(from_context.length_per_key())
        expanded = features.expansion.of_rows(from_context.values(), (width,))
        if from_rows is None:
            return KeyedTensor(from_context.keys(), from_context.length_per_key(), expanded)
        return self._side_by_side(features, expanded, from_rows.values())

    def _sequences(
        self,
        features: RankingFeatures,
        from_context: Mapping[str, JaggedTensor],
        from_rows: Mapping[str, JaggedTensor],
    ) -> dict[str, JaggedTensor]:
        expansion = features.expansion
        found = {}
        for pair in self.whole.layout.pairs:
            if pair.name not in from_context:
                found[pair.name] = from_rows[pair.name]
                continue
            jagged = from_context[pair.name]
            bags = (features.argument, pair.feature)
            dims = (self.whole.layout.tables[pair.table].embedding_dim,)
            found[pair.name] = JaggedTensor(
                expansion.of_ids(jagged.values(), features.places(pair.feature), dims, bags),
                lengths=expansion.lengths_of_rows(jagged.lengths(), bags),
            )
        return found

    def _side_by_side(self, features: RankingFeatures, expanded: Tensor, rows: Tensor) -> KeyedTensor:
        """Return the columns of both parts in the order of the pairs; neighbours of one part are copied at once."""
        layout = self.whole.layout
        dims = [layout.tables[pair.table].embedding_dim for pair in layout.pairs]
        of_context = [pair.feature in features.context_keys for pair in layout.pairs]
        starts = {True: 0, False: 0}
        runs: list[tuple[bool, int, int]] = []
        for is_context, dim in zip(of_context, dims, strict=True):
            if runs and runs[-1][0] == is_context:
                runs[-1] = (is_context, runs[-1][1], runs[-1][2] + dim)
            else:
                runs.append((is_context, starts[is_context], dim))
            starts[is_context] += dim
        parts = [
            (expanded if is_context else rows).narrow(1, start, width) for is_context, start, width in runs
        ]
        return KeyedTensor([pair.name for pair in layout.pairs], dims, torch.cat(parts, dim=1))


def _rows_of(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    if not isinstance(features, RankingFeatures):
        return features
    assert features.rows is not None
    return features.rows
