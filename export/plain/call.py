"""One call of a converted plain model: its graph's nodes, run or traced, with lookups in collections.

Shape letters: B batch, L IDs of a row, D embedding dim, N number of IDs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

from export.graph.inputs import computed
from export.graph.tracing.tracer import LINE, SETTLED
from export.plain.features import LEFT, RIGHT, Feature
from export.plain.lookups import Lookup, Table
from export.plain.moved import Moved
from export.plain.plan import COMPUTED, POOLED, SEQUENCES, Part, Plan, Segment, computed_name, reduces
from export.plain.recipe import Recipe
from recsys.artifact.graphs import attribute
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor
from recsys.models.history import recent, recent_rows


class Call:
    """One call of a plain model: its graph's nodes, run or traced."""

    def __init__(
        self, model: nn.Module, recipe: Recipe, dense: Mapping[str, Any], features: KeyedJaggedTensor | None
    ) -> None:
        self._model, self._recipe, self._dense, self._features = model, recipe, dense, features
        self._env: dict[fx.Node, Any] = {}
        self._found: dict[str, Any] = {}

    def outputs(self) -> Any:
        """Run the nodes."""
        for node in self._recipe.graph.nodes:
            if node in self._recipe.needed and node.op != "placeholder":
                # Read by export.graph.tracing.source_location, for the graph and for errors.
                model_line = node.meta.get(LINE)
                self._env[node] = self._value(node)
                if node.op == "output":
                    return self._env[node]
                del model_line
        raise AssertionError("a graph has an output")

    def _value(self, node: fx.Node) -> Any:
        recipe = self._recipe
        if node in recipe.moved:
            return self._moved(node, recipe.moved[node])
        if node in recipe.plan_of:
            return self._rows(*recipe.plan_of[node])
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda one: self._env[one])
        if node in recipe.checked and args:
            args = (self._checked_ids(args[0], *recipe.checked[node]), *args[1:])
        if node.op == "output":
            return args[0]
        if node.op == "get_attr":
            return attribute(self._model, str(node.target))
        if node.op == "call_module":
            return attribute(self._model, str(node.target))(*args, **kwargs)
        proxy = _first_proxy([args, kwargs])
        if proxy is not None:
            # The trace of the model has told what it asked of sizes.
            add = proxy.tracer.squeezed if SETTLED in node.meta else proxy.tracer.create_proxy
            return add(node.op, node.target, args, kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _moved(self, node: fx.Node, moved: Moved) -> Any:
        """Return numbers of the inputs in a node's shape and type, from the features and dense inputs."""
        found = self._numbers(moved.places, tuple(moved.elements.shape))
        found = found.to(self._recipe.dtypes[node])
        return found if moved.shift is None else found + moved.shift

    def _numbers(self, places: tuple[int, ...], shape: tuple[int, ...]) -> Any:
        inputs = self._recipe.inputs
        held: list[tuple[tuple[int, ...], Any]] = []
        for feature in inputs.features:
            if {*feature.places} & {*places}:
                held.append((feature.places, lambda one=feature: self._ids(one)))
        for dense in inputs.dense:
            if {*dense.places} & {*places}:
                held.append((dense.places, lambda one=dense: self._dense[one.name]))
        order = [place for of, _ in held for place in of]
        parts = [make() for _, make in held]
        if len(parts) > 1 and any(dtype.is_floating_point for dtype in self._dtypes_of(places)):
            parts = [part.float() for part in parts]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        if tuple(order) != places:
            columns = [order.index(place) for place in places]
            if columns == list(range(columns[0], columns[0] + len(columns))):
                whole = whole[:, columns[0] : columns[0] + len(columns)]
            else:
                whole = whole.index_select(1, torch.tensor(columns))
        if len(shape) == 1:
            return whole
        return whole.reshape(-1, *shape) if shape else _squeezed(whole, 1)

    def _dtypes_of(self, places: tuple[int, ...]) -> list[torch.dtype]:
        given = self._recipe.given
        return [tensor.dtype for name, tensor in given.tensors.items() if {*given.places[name]} & {*places}]

    def _ids(self, feature: Feature) -> Any:
        """Return the IDs of a feature with its padding, int64 ``[B, L]``."""
        key = f"ids {feature.name}"
        if key not in self._found:
            assert self._features is not None
            self._found[key] = padded_ids(self._features[feature.name], feature)
        return self._found[key]

    def _rows(self, plan: Plan, lookup: Lookup) -> Any:
        """Return what a lookup returns."""
        if plan.kind == COMPUTED:
            rows = self._computed(plan, lookup)
        else:
            shape = tuple(self._recipe.moved[lookup.ids].elements.shape)
            parts = [self._of_segment(plan, one) for one in plan.segments[lookup.node]]
            rows = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
            if plan.kind != POOLED or len(parts) > 1 or (shape and not lookup.mode):
                rows = rows.reshape(-1, *shape, plan.dim)
        return self._reduced(rows, lookup) if reduces(plan, lookup) else rows

    def _of_segment(self, plan: Plan, segment: Segment) -> Any:
        feature, part = segment.feature, segment.part
        if plan.kind == POOLED:
            return self._lookup(POOLED)[self._name(POOLED, feature, part)]
        name = f"{SEQUENCES}_{part.weight.shape[1]}"
        return padded_rows(self._lookup(name)[self._name(name, feature, part)], feature)

    def _name(self, collection: str, feature: Feature, part: Part) -> str:
        """Return the name of a lookup's rows."""
        module: Any = self._model.get_submodule(collection)
        configs = module.embedding_bag_configs() if collection == POOLED else module.embedding_configs()
        several = sum(feature.name in config.feature_names for config in configs) > 1
        return f"{feature.name}@{part.name}" if several else feature.name

    def _lookup(self, collection: str) -> Any:
        if collection not in self._found:
            found = self._model.get_submodule(collection)(self._features)
            self._found[collection] = found.to_dict() if collection == POOLED else found
        return self._found[collection]

    def _checked_ids(self, ids: Any, table: Table, lookup: Lookup) -> Any:
        """Return the IDs of a table that stays dense: a server does not know that they are some."""
        flat = ids.reshape(-1)
        # By the name that torch.fx wraps.
        checked = computed.checked_ids(flat, torch.ones_like(flat), [table.name], [len(table.weight)])
        sizes = self._recipe.shapes[lookup.ids]
        return checked if len(sizes) == 1 else checked.reshape(*sizes)

    def _computed(self, plan: Plan, lookup: Lookup) -> Any:
        """Return rows for IDs that the model computes."""
        ids, sizes = self._env[lookup.ids], self._recipe.shapes[lookup.ids]
        name = plan.parts[0].name
        flat = ids.reshape(-1).long()
        count = math.prod(sizes[1:])
        if sizes[:1] == (-1,) and -1 not in sizes[1:]:
            lengths = torch.full((ids.size(0),), count)
            features = KeyedJaggedTensor([name], flat, lengths=lengths)
            rows = self._model.get_submodule(computed_name(plan))(features)[name].to_padded_dense(count)
        else:
            features = KeyedJaggedTensor([name], flat, lengths=torch.ones_like(flat))
            rows = self._model.get_submodule(computed_name(plan))(features)[name].values()
        return rows.reshape(*sizes, plan.dim)

    def _reduced(self, rows: Any, lookup: Lookup) -> Any:
        """Return the sum, mean or maximum of the rows of each bag, ``[B, D]``."""
        if lookup.per_id_weights is not None:
            rows = rows * self._env[lookup.per_id_weights].unsqueeze(-1)
        if lookup.padding_idx is None:
            return rows.amax(dim=1) if lookup.mode == "max" else getattr(rows, lookup.mode)(dim=1)
        kept = (self._env[lookup.ids] != lookup.padding_idx).unsqueeze(-1)
        if lookup.mode == "max":
            largest = rows.masked_fill(~kept, -torch.inf).amax(dim=1)
            return largest.masked_fill(~kept.any(dim=1), 0.0)
        total = (rows * kept.to(rows.dtype)).sum(dim=1)
        return total if lookup.mode == "sum" else total / kept.sum(dim=1).clamp(min=1).to(rows.dtype)


def padded_ids(ids: JaggedTensor, feature: Feature) -> Any:
    """Return IDs as the model takes them, int64 ``[B, L]``; of longer bags the last L."""
    size, padding = feature.num_ids, feature.padding
    if feature.side == RIGHT:
        values = (ids.values() - padding if padding else ids.values()).unsqueeze(1)
        found = _squeezed(recent_rows(values, ids.offsets(), size), 2)
        return found + padding if padding else found
    if feature.side == LEFT:
        return _backwards(ids).to_padded_dense(size, float(padding)).flip(0).flip(1)
    return ids.to_padded_dense(size)


def padded_rows(rows: JaggedTensor, feature: Feature) -> Any:
    """Return rows as the model takes them, ``[B, L, D]``, zeros for padding; of longer bags the last L."""
    if feature.side == RIGHT:
        return recent(rows, feature.num_ids)
    if feature.side == LEFT:
        return _backwards(rows).to_padded_dense(feature.num_ids).flip(0).flip(1)
    return rows.to_padded_dense(feature.num_ids)


def _backwards(jagged: JaggedTensor) -> JaggedTensor:
    return JaggedTensor(jagged.values().flip(0), lengths=jagged.lengths().flip(0))


def _squeezed(tensor: Any, dim: int) -> Any:
    """Return a tensor without a dimension of the size 1."""
    if isinstance(tensor, fx.Proxy):
        return tensor.tracer.squeezed("call_method", "squeeze", (tensor, dim), {})  # type: ignore[attr-defined]
    return tensor.squeeze(dim)


def _first_proxy(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return next((one for one in map(_first_proxy, value) if one is not None), None)
    if isinstance(value, dict):
        return _first_proxy(list(value.values()))
    if isinstance(value, slice):
        return _first_proxy([value.start, value.stop, value.step])
    return value if isinstance(value, fx.Proxy) else None
