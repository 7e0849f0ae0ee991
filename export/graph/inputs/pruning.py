"""Models without the rows that the chosen outputs do not descend from.

The code around them still runs while the model is traced: it gets zeros in their place. Then it leaves the graph.

Shape letters: B batch, D embedding dim.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, fx, nn

from export.graph.inputs.features import BETWEEN, Call, InputUse, nodes_in
from export.graph.modules import replace_modules
from export.graph.tracing.sizes import input_name
from recsys.configs import embedding_names, tables_with
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection, FloatCollection
from recsys.errors import ExportError
from recsys.jagged.keyed import KeyedTensor
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor
from recsys.managed.embedding import BaseManagedCollisionEmbeddingCollection
from recsys.modules.feature_processors import FeatureProcessedEmbeddingBagCollection
from recsys.quant import float_tables


def needed_rows(found: InputUse) -> dict[str, set[str]]:
    """Return for each collection the features whose rows the outputs descend from."""
    call_of = {node: call for calls in found.calls.values() for call in calls for node in call.own}
    reached = _reached(found, call_of)
    needed: dict[str, set[str]] = {path: set() for path in found.calls}
    for path, calls in found.calls.items():
        for call in calls:
            # A node that the call made of another of its own is reached by that call alone.
            outside = {node for node in call.own if reached.get(node, set()) - {id(call)}}
            names = _rows_in(call.rows, outside, {*reached} - call.own, {*found.outputs})
            needed[path] |= {call.feature_of[name] for name in names}
    return needed


def reached_inputs(found: InputUse) -> set[str]:
    """Return the arguments that the outputs descend from."""
    names = [input_name(node) for node in _reached(found, {})]
    return {name.split(BETWEEN)[0] for name in names if name is not None}


def _reached(found: InputUse, call_of: Mapping[fx.Node, Call]) -> dict[fx.Node, set[int]]:
    """Return the nodes that the outputs descend from, and the identities of the calls whose nodes read them."""
    reached: dict[fx.Node, set[int]] = {}
    waiting: list[tuple[fx.Node, int]] = [(node, 0) for node in found.outputs]
    while waiting:
        node, user = waiting.pop()
        if node not in reached:
            own = id(call_of[node]) if node in call_of else 0
            waiting += [(source, own) for source in node.all_input_nodes]
        reached.setdefault(node, set()).add(user)
    return reached


def _rows_in(rows: Any, outside: set[fx.Node], users: set[fx.Node], outputs: set[fx.Node]) -> set[str]:
    """Return the names of those of a call's rows that are read outside of it.

    Args:
        rows: What the call returned.
        outside: Its nodes that are.
        users: The nodes that read them, among others.
        outputs: Those of the model.
    """
    if not isinstance(rows, KeyedTensor):
        named = rows if isinstance(rows, dict) else {}
        return {name for name, jagged in named.items() if outside & {*nodes_in(jagged)}}
    [values] = nodes_in(rows.values())
    if values not in outside:
        return set()
    if values in outputs:
        return {*rows.keys()}
    starts = accumulate(rows.length_per_key(), initial=0)
    cuts: dict[Any, str] = dict(
        zip(zip(starts, rows.length_per_key(), strict=False), rows.keys(), strict=True)
    )
    found: set[str] = set()
    for user in users & {*values.users}:
        if user.target == "narrow" and user.args[1] == rows.key_dim() and user.args[2:] in cuts:
            found.add(cuts[user.args[2:]])
        elif user.target is torch.split and user.args[1] == rows.length_per_key():
            parts: list[Any] = [part.args[1] for part in user.users if part in users]
            found |= {rows.keys()[part] for part in parts}
        else:
            return {*rows.keys()}
    return found


def pruned(
    model: nn.Module, collections: Mapping[str, FloatCollection], needed: Mapping[str, Collection[str]]
) -> nn.Module:
    """Return a copy of a model whose collections hold the tables of some features alone.

    Args:
        model: The float model, which is not changed; the copy shares its weights.
        collections: Its collections by path.
        needed: For each of them the features whose rows are needed. Tables behind a mapping of raw IDs stay all, unless
            none is needed.

    Raises:
        ExportError: No rows are needed at all.
    """
    if not any(needed.values()):
        raise ExportError(
            "outputs: got only some that no table reaches, expected at least one that tables reach"
        )
    around = {
        id(inner): (path, module) for path, module in model.named_modules() for inner in _within(module)
    }
    new: dict[str, nn.Module] = {}
    for path, collection in collections.items():
        kept = needed.get(path, ())
        outside, wrapper = around.get(id(collection), (path, collection))
        if not kept:
            new[outside] = _Absent(collection, wrapper)
        elif not isinstance(wrapper, BaseManagedCollisionEmbeddingCollection) and set(kept) != features_of(
            collection
        ):
            new[path] = _some(collection, kept)
    return replace_modules(model, new)


def _within(module: nn.Module) -> list[nn.Module]:
    """Return the collection that a module is made around, so that both return the same."""
    if isinstance(module, BaseManagedCollisionEmbeddingCollection):
        return [module.embedding_module]
    return [module.split()[1]] if isinstance(module, FeatureProcessedEmbeddingBagCollection) else []


def features_of(collection: FloatCollection) -> set[str]:
    """Return the features of a collection's tables."""
    return {feature for table in float_tables(collection) for feature in table.feature_names}


def _named_dims(collection: FloatCollection) -> dict[str, int]:
    """Return the width of each (feature, table) pair's rows, by its name."""
    tables = float_tables(collection)
    return {
        name: table.embedding_dim
        for table, names in zip(tables, embedding_names(tables), strict=True)
        for name in names
    }


def _some(collection: FloatCollection, kept: Collection[str]) -> FloatCollection:
    """Return the tables of some features; other rows that forward asks for are zeros."""
    dims = _named_dims(collection)
    new: FloatCollection
    if isinstance(collection, EmbeddingBagCollection):
        bags = tables_with(collection.embedding_bag_configs(), kept)
        new = EmbeddingBagCollection(bags, collection.is_weighted(), torch.device("meta"))
        for bag in bags:
            new.embedding_bags[bag.name].weight = collection.embedding_bags[bag.name].weight
    else:
        tables = tables_with(collection.embedding_configs(), kept)
        new = EmbeddingCollection(tables, torch.device("meta"), collection.need_indices())
        for table in tables:
            new.embeddings[table.name].weight = collection.embeddings[table.name].weight
    # A hook goes along with whatever replaces the collection.
    new.register_forward_hook(lambda _, __, rows: _with_zeros(rows, dims))
    return new


def _with_zeros(rows: Any, dims: Mapping[str, int]) -> Any:
    if isinstance(rows, KeyedTensor):
        return _WithZeros(rows, dims)
    num_rows = next(iter(rows.values())).lengths().size(0)
    return {name: rows[name] if name in rows else _no_rows(num_rows, dim) for name, dim in dims.items()}


class _WithZeros(KeyedTensor):
    """Pooled rows of some keys, and zeros for others, which are made when they are asked for."""

    def __init__(self, rows: KeyedTensor, dims: Mapping[str, int]) -> None:
        # Not the base's constructor, which takes all values at once.
        self._rows = rows
        self._keys, self._length_per_key = list(dims), list(dims.values())
        self._key_dim = rows.key_dim()

    @property
    def _values(self) -> Tensor:  # type: ignore[override]
        return torch.cat([*self.to_dict().values()], dim=self._key_dim)

    def __getitem__(self, key: str) -> Tensor:
        return self._rows[key] if key in self._rows.keys() else self._zeros(key)  # noqa: SIM118 (not a dict)

    def to_dict(self) -> dict[str, Tensor]:
        rows = self._rows.to_dict()
        return {key: rows[key] if key in rows else self._zeros(key) for key in self._keys}

    def _zeros(self, key: str) -> Tensor:
        values = self._rows.values()
        return values.new_zeros(values.size(0), self._length_per_key[self._keys.index(key)])


class _Absent(nn.Module):
    """Stands for a collection that is not needed: every row is zero, every bag is empty.

    Args:
        collection: The collection.
        wrapper: What it is replaced with: itself, or the module around it.
    """

    def __init__(self, collection: FloatCollection, wrapper: nn.Module) -> None:
        super().__init__()
        self._dims = _named_dims(collection)
        self._is_pooled = isinstance(collection, EmbeddingBagCollection)
        self._is_pair = getattr(wrapper, "_embeddings_only", True) is False
        self._gives_features = getattr(wrapper, "_return_remapped_features", False)
        # It gives the IDs with the rows itself.
        self._gives_indices = True

    def forward(self, features: KeyedJaggedTensor, *_: object, **__: object) -> Any:
        """Return what the collection returns for empty bags."""
        num_rows = features.stride()
        rows: Any
        if self._is_pooled:
            values = torch.zeros(num_rows, sum(self._dims.values()))
            rows = KeyedTensor([*self._dims], [*self._dims.values()], values)
        else:
            rows = {name: _no_rows(num_rows, dim) for name, dim in self._dims.items()}
        # As a managed collection returns it.
        return (rows, features if self._gives_features else None) if self._is_pair else rows


def _no_rows(num_rows: int, dim: int) -> JaggedTensor:
    lengths = torch.zeros(num_rows, dtype=torch.int64)
    return JaggedTensor(torch.zeros(num_rows, dim)[:0], lengths[:0], lengths)
