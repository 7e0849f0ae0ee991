"""A plain model as one that holds our collections, and takes features and dense inputs.

Shape letters: B batch, L IDs of a row, D embedding dim, N number of IDs, R rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from export.graph.modules.tree import replace_modules
from export.graph.tracing.tracer import LINE
from export.plain.features import Feature, Inputs
from export.plain.lookups import Lookup, Table
from export.plain.moved import Moved
from export.plain.traced import MODEL, PlainGraph, attribute, writes
from recsys.configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor
from recsys.models.history import recent, recent_rows
from recsys.quant import float_tables

#: The attributes that hold the collections.
POOLED, SEQUENCES, COMPUTED = "tables", "sequences", "computed"
# Of the argument that holds the features: the first that no dense input has.
_ARGUMENTS = ("features", "sparse_features", "keyed_features")


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows of a table, for IDs to which the model adds the number of the first.

    Attributes:
        name: The name of the stored table.
        first: The number of the first row.
        weight: ``[R, D]``.
    """

    name: str
    first: int
    weight: Tensor


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The IDs of a lookup that are those of one feature, in one stored table."""

    feature: Feature
    part: Part


@dataclass(kw_only=True)
class Plan:
    """How a table is stored and read.

    Attributes:
        table: The table.
        parts: The stored tables.
        kind: ``POOLED``, ``SEQUENCES`` or ``COMPUTED``.
        segments: Of each lookup, unless the model computes IDs.
        pooling: Of a pooled table.
    """

    table: Table
    parts: list[Part]
    kind: str
    segments: dict[fx.Node, list[Segment]]
    pooling: PoolingType = PoolingType.SUM

    @property
    def dim(self) -> int:
        """D."""
        return self.table.weight.shape[1]


def plan_of(table: Table, inputs: Inputs, moved: Mapping[fx.Node, Moved]) -> Plan:
    """Return how a table is stored and read."""
    whole = Part(name=table.name, first=0, weight=table.weight)
    computed = Plan(table=table, parts=[whole], kind=COMPUTED, segments={})
    if any(lookup.ids not in moved for lookup in table.lookups):
        return computed
    parts = _parts(table, moved)
    segments = {}
    for lookup in table.lookups:
        found = _segments(lookup, moved[lookup.ids], inputs, parts)
        if found is None:
            return computed
        segments[lookup.node] = found
    modes = {
        lookup.mode for lookup in table.lookups for one in segments[lookup.node] if one.feature.num_ids > 1
    }
    can_pool = (
        len(modes) == 1
        and modes <= {"sum", "mean"}
        and all(_pools(lookup, segments[lookup.node]) for lookup in table.lookups)
    )
    if not modes or can_pool:
        mean = "mean" in modes
        kind, pooling = POOLED, PoolingType.MEAN if mean else PoolingType.SUM
    else:
        kind, pooling = SEQUENCES, PoolingType.SUM
        if not all(_pads_with_zeros(one) for found in segments.values() for one in found):
            return computed
    return Plan(table=table, parts=[*parts.values()], kind=kind, segments=segments, pooling=pooling)


def _parts(table: Table, moved: Mapping[fx.Node, Moved]) -> dict[int, Part]:
    """Return the parts of a table by what is added to IDs."""
    shifts: set[int] = set()
    for lookup in table.lookups:
        shift = moved[lookup.ids].shift
        shifts |= {0} if shift is None else set(shift.flatten().tolist())
    firsts = sorted(shifts)
    if firsts == [0]:
        return {0: Part(name=table.name, first=0, weight=table.weight)}
    ends = [*firsts[1:], len(table.weight)]
    return {
        first: Part(name=f"{table.name}_{i}", first=first, weight=table.weight[first:end])
        for i, (first, end) in enumerate(zip(firsts, ends, strict=True))
        if 0 <= first < end <= len(table.weight)
    }


def _segments(lookup: Lookup, ids: Moved, inputs: Inputs, parts: Mapping[int, Part]) -> list[Segment] | None:
    """Return the features that a lookup's IDs are, one after the other; None if they are other IDs."""
    features = {one.first: one for one in inputs.features}
    places = ids.places
    shifts = [0] * len(places) if ids.shift is None else ids.shift.flatten().tolist()
    found = []
    at = 0
    while at < len(places):
        feature = features.get(places[at])
        if feature is None or places[at : at + feature.num_ids] != feature.places:
            return None
        of_feature = {*shifts[at : at + feature.num_ids]}
        if len(of_feature) != 1 or (part := parts.get(of_feature.pop())) is None:
            return None
        found.append(Segment(feature=feature, part=part))
        at += feature.num_ids
    # Requests may have fewer IDs: rows of several features would move.
    is_one = len(found) == 1
    return found if is_one or lookup.per_id_weights is None else None


def _pools(lookup: Lookup, segments: Sequence[Segment]) -> bool:
    """Return whether a lookup sums up or averages the bags that requests give."""
    feature = segments[0].feature
    if feature.num_ids == 1:
        return True
    is_left_out = not feature.is_padded or lookup.padding_idx == feature.padding + segments[0].part.first
    fits = feature.is_padded or lookup.padding_idx is None
    return len(segments) == 1 and bool(lookup.mode) and lookup.per_id_weights is None and is_left_out and fits


def _pads_with_zeros(segment: Segment) -> bool:
    feature, weight = segment.feature, segment.part.weight
    if not feature.is_padded:
        return True
    return 0 <= feature.padding < len(weight) and not bool(weight[feature.padding].any())


class _Recipe:
    """What a call of a plain model follows. Copies of the model share it."""

    def __init__(
        self, plain: PlainGraph, inputs: Inputs, plans: Sequence[Plan], moved: Mapping[fx.Node, Moved]
    ) -> None:
        self.graph, self.inputs, self.moved = plain.graph, inputs, moved
        self.leaves = plain.given.leaves
        self.plan_of = {lookup.node: (plan, lookup) for plan in plans for lookup in plan.table.lookups}
        self.shapes, self.dtypes = shapes_of(plain)
        self.needed = self._needed_nodes()

    def __deepcopy__(self, _: object) -> _Recipe:
        return self

    def _needed_nodes(self) -> set[fx.Node]:
        """Return the nodes that are computed: not those that only lead to rows of features."""
        needed: set[fx.Node] = set()
        waiting = [node for node in self.graph.nodes if node.op == "output" or writes(node)]
        while waiting:
            node = waiting.pop()
            if node in needed:
                continue
            needed.add(node)
            if node in self.plan_of:
                plan, lookup = self.plan_of[node]
                if plan.kind == COMPUTED or (reduces(plan, lookup) and lookup.padding_idx is not None):
                    waiting.append(lookup.ids)
                if lookup.per_id_weights is not None:
                    waiting.append(lookup.per_id_weights)
            elif node not in self.moved:
                waiting += node.all_input_nodes
        return needed


def reduces(plan: Plan, lookup: Lookup) -> bool:
    """Return whether the rows of a bag are reduced after the lookup, and not by it."""
    return bool(lookup.mode) and plan.kind != POOLED


class PlainModel(nn.Module):
    """A plain model that takes features and dense inputs: its graph, in which collections look up.

    ``with_forward`` gives it a ``forward`` that names the inputs.

    Attributes:
        num_ids: The number of IDs that each bag of a feature must hold, for those that take no other number.
        dense_widths: The numbers of each dense input.
    """

    def __init__(
        self, plain: PlainGraph, inputs: Inputs, plans: Sequence[Plan], moved: Mapping[fx.Node, Moved]
    ) -> None:
        super().__init__()
        self.recipe = _Recipe(plain, inputs, plans, moved)
        self.add_module(MODEL, _without(attribute(plain.root, MODEL), plans))
        for node in plain.graph.nodes:
            name = str(node.target)
            if node.op == "get_attr" and not name.startswith(f"{MODEL}."):
                self.register_buffer(name, attribute(plain.root, name), persistent=False)
        pooled = [plan for plan in plans if plan.kind == POOLED]
        if pooled:
            made = EmbeddingBagCollection(_tables(EmbeddingBagConfig, pooled), device="meta")
            self.add_module(POOLED, _with_weights(made, pooled))
        of_dim: dict[int, list[Plan]] = {}
        for plan in plans:
            if plan.kind == SEQUENCES:
                of_dim.setdefault(plan.dim, []).append(plan)
            if plan.kind == COMPUTED:
                [part] = plan.parts
                config = EmbeddingConfig(
                    name=part.name,
                    num_embeddings=len(part.weight),
                    embedding_dim=plan.dim,
                    feature_names=[part.name],
                )
                one = _with_weights(EmbeddingCollection([config], device="meta"), [plan])
                self.add_module(_computed(plan), one)
        for dim, some in of_dim.items():
            several = EmbeddingCollection(_tables(EmbeddingConfig, some), device="meta")
            self.add_module(f"{SEQUENCES}_{dim}", _with_weights(several, some))
        self.num_ids = {one.name: one.num_ids for one in inputs.features if not one.is_padded}
        self.dense_widths = {one.name: len(one.places) for one in inputs.dense}

    def run(self, dense: Mapping[str, Any], features: KeyedJaggedTensor | None) -> Any:
        """Return the outputs.

        Args:
            dense: The dense inputs by name, ``[B, width]``.
            features: The features.
        """
        return _Call(self, self.recipe, dense, features).outputs()


def with_forward(model: PlainModel) -> PlainModel:
    """Return the model, whose class now has a ``forward`` that names its dense inputs and takes all features as one."""
    inputs = model.recipe.inputs
    dense = [one.name for one in inputs.dense]
    sparse = next(name for name in _ARGUMENTS if name not in dense) if inputs.features else None
    arguments = [
        *(f"{name}: Tensor" for name in dense),
        *([f"{sparse}: KeyedJaggedTensor"] if sparse else []),
    ]
    given = ", ".join(f"{name!r}: {name}" for name in dense)
    scope: dict[str, Any] = {"Tensor": Tensor, "KeyedJaggedTensor": KeyedJaggedTensor}
    exec(f"def forward(self, {', '.join(arguments)}):\n    return self.run({{{given}}}, {sparse})\n", scope)
    model.__class__ = type("PlainModel", (PlainModel,), {"forward": scope["forward"], "__module__": __name__})
    return model


def shapes_of(plain: PlainGraph) -> tuple[dict[fx.Node, tuple[int, ...]], dict[fx.Node, torch.dtype]]:
    """Return the shape of each tensor of a graph, with -1 for a size that follows from B, and its type."""
    num_rows = plain.given.num_rows
    found = []
    for rows in (torch.arange(num_rows), torch.arange(num_rows + 1) % num_rows):
        recorder = _Recorder(plain.root, plain.graph)
        with torch.no_grad():
            recorder.run({leaf.name: leaf.tensor[rows] for leaf in plain.given.leaves})
        found.append(recorder.found)
    first, second = found
    shapes = {
        node: tuple(a if a == b else -1 for a, b in zip(one.shape, second[node].shape, strict=True))
        for node, one in first.items()
        if node in second and one.dim() == second[node].dim()
    }
    return shapes, {node: one.dtype for node, one in first.items()}


class _Recorder(fx.Interpreter):
    def __init__(self, root: nn.Module, graph: fx.Graph) -> None:
        super().__init__(root, graph=graph)
        self.found: dict[fx.Node, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.found[n] = torch.empty_like(result, device="meta")
        return result


def _computed(plan: Plan) -> str:
    return f"{COMPUTED}_{plan.parts[0].name}"


def _tables(kind: Any, plans: Sequence[Plan]) -> list[Any]:
    found = []
    for plan in plans:
        for part in plan.parts:
            features = [
                one.feature.name
                for segments in plan.segments.values()
                for one in segments
                if one.part is part
            ]
            if features:
                pooling = {"pooling": plan.pooling} if kind is EmbeddingBagConfig else {}
                found.append(
                    kind(
                        name=part.name,
                        num_embeddings=len(part.weight),
                        embedding_dim=part.weight.shape[1],
                        feature_names=list(dict.fromkeys(features)),
                        **pooling,
                    )
                )
    return found


def _with_weights(collection: Any, plans: Sequence[Plan]) -> Any:
    tables = (
        collection.embedding_bags if isinstance(collection, EmbeddingBagCollection) else collection.embeddings
    )
    weights = {part.name: part.weight for plan in plans for part in plan.parts}
    for config in float_tables(collection):
        tables[config.name].weight = nn.Parameter(weights[config.name].float(), requires_grad=False)
    return collection


def _without(model: nn.Module, plans: Sequence[Plan]) -> nn.Module:
    """Return a copy of a model without the tables, wherever it refers to them."""
    weights = {id(attribute(model, plan.table.path)) for plan in plans}
    gone = {
        path: nn.Identity()
        for path, module in model.named_modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and id(module.weight) in weights
    }
    new = replace_modules(model, gone)
    for module in new.modules():
        for name, value in list(module._parameters.items()):
            if id(value) in weights:
                del module._parameters[name]
    return new


class _Call:
    """One call of a plain model: its graph's nodes, run or traced."""

    def __init__(
        self, model: PlainModel, recipe: _Recipe, dense: Mapping[str, Any], features: KeyedJaggedTensor | None
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
        if node.op == "output":
            return args[0]
        if node.op == "get_attr":
            return attribute(self._model, str(node.target))
        if node.op == "call_module":
            return attribute(self._model, str(node.target))(*args, **kwargs)
        proxy = _first_proxy([args, kwargs])
        if proxy is not None:
            return proxy.tracer.create_proxy(node.op, node.target, args, kwargs)
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
        return whole.reshape(-1, *shape) if shape else whole.squeeze(1)

    def _dtypes_of(self, places: tuple[int, ...]) -> list[torch.dtype]:
        at, found = 0, []
        for leaf in self._recipe.leaves:
            if {*range(at, at + leaf.width)} & {*places}:
                found.append(leaf.tensor.dtype)
            at += leaf.width
        return found

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

    def _computed(self, plan: Plan, lookup: Lookup) -> Any:
        """Return rows for IDs that the model computes."""
        ids, sizes = self._env[lookup.ids], self._recipe.shapes[lookup.ids]
        name = plan.parts[0].name
        flat = ids.reshape(-1).long()
        count = math.prod(sizes[1:])
        if sizes[:1] == (-1,) and -1 not in sizes[1:]:
            lengths = torch.full((ids.size(0),), count)
            features = KeyedJaggedTensor([name], flat, lengths=lengths)
            rows = self._model.get_submodule(_computed(plan))(features)[name].to_padded_dense(count)
        else:
            features = KeyedJaggedTensor([name], flat, lengths=torch.ones_like(flat))
            rows = self._model.get_submodule(_computed(plan))(features)[name].values()
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
    if feature.side == "right":
        values = (ids.values() - padding if padding else ids.values()).unsqueeze(1)
        found = recent_rows(values, ids.offsets(), size).squeeze(2)
        return found + padding if padding else found
    if feature.side == "left":
        return _backwards(ids).to_padded_dense(size, float(padding)).flip(0).flip(1)
    return ids.to_padded_dense(size)


def padded_rows(rows: JaggedTensor, feature: Feature) -> Any:
    """Return rows as the model takes them, ``[B, L, D]``, zeros for padding; of longer bags the last L."""
    if feature.side == "right":
        return recent(rows, feature.num_ids)
    if feature.side == "left":
        return _backwards(rows).to_padded_dense(feature.num_ids).flip(0).flip(1)
    return rows.to_padded_dense(feature.num_ids)


def _backwards(jagged: JaggedTensor) -> JaggedTensor:
    return JaggedTensor(jagged.values().flip(0), lengths=jagged.lengths().flip(0))


def _first_proxy(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return next((one for one in map(_first_proxy, value) if one is not None), None)
    if isinstance(value, dict):
        return _first_proxy(list(value.values()))
    if isinstance(value, slice):
        return _first_proxy([value.start, value.stop, value.step])
    return value if isinstance(value, fx.Proxy) else None
