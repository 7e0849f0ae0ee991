"""Discovery: which features each sparse argument holds, and what of the inputs a model reads.

The model is traced with arguments that hold every feature that they may. What its lookups and its outputs descend
from tells which of them they are; then it is traced again with these alone, until nothing new is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, fx, nn

from export.graph.tracing import trace
from export.graph.tree import exchanged
from recsys.configs import embedding_names
from recsys.embedding import EmbeddingBagCollection, FloatCollection
from recsys.errors import ExportError
from recsys.jagged.keyed import KeyedTensor
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor
from recsys.quant import float_tables
from recsys.sharding.sharded import ShardedCollection

_VALUES, _LENGTHS, _WEIGHTS = "values", "lengths", "weights"
# In the name of an input: its argument, what it is of it, and the feature if it is of one alone.
_BETWEEN = "\n"


@dataclass(kw_only=True)
class Found:
    """What a model does with its inputs.

    Attributes:
        graph: The trace.
        root: The module that was traced.
        features: The features of each sparse argument.
        reached: For each collection, by path, the arguments whose features it looks up under their own names.
        computed: For each collection the features whose IDs the model computes.
        weighing: The collections whose weights the model computes.
        weighted: For each argument, the features whose weights the model itself reads.
        dense: The dense arguments that the model's code uses.
        needed: For each collection the features whose rows the outputs descend from.
        reached_inputs: The arguments that the outputs descend from.
    """

    graph: fx.Graph = field(default_factory=fx.Graph)
    root: nn.Module = field(default_factory=nn.Module)
    features: dict[str, list[str]] = field(default_factory=dict)
    reached: dict[str, set[str]] = field(default_factory=dict)
    computed: dict[str, set[str]] = field(default_factory=dict)
    weighing: set[str] = field(default_factory=set)
    weighted: dict[str, set[str]] = field(default_factory=dict)
    dense: set[str] = field(default_factory=set)
    needed: dict[str, set[str]] = field(default_factory=dict)
    reached_inputs: set[str] = field(default_factory=set)


@dataclass(kw_only=True)
class _Call:
    """A call of a collection.

    Attributes:
        ids: For each feature the nodes of its IDs, and of its weights.
        rows: What the call returned.
        own: The nodes of the lookup.
        needed: The features whose rows the outputs descend from.
    """

    ids: dict[str, tuple[list[fx.Node], list[fx.Node]]]
    rows: Any = None
    own: set[fx.Node] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)


class _Given(KeyedJaggedTensor):
    """An argument whose features have tensors of their own; a feature that is asked for by name is there."""

    def __init__(self, argument: str, tensors: Any, features: Sequence[str]) -> None:
        def tensor(kind: str, *feature: str) -> Tensor:
            found: Tensor = tensors[_BETWEEN.join([argument, kind, *feature])]
            return found

        def jagged(feature: str) -> JaggedTensor:
            return JaggedTensor(
                tensor(_VALUES, feature),
                weights=tensor(_WEIGHTS, feature),
                lengths=tensor(_LENGTHS, feature),
            )

        lengths = tensor(_LENGTHS)
        super().__init__(
            list(features),
            tensor(_VALUES),
            weights=tensor(_WEIGHTS),
            lengths=lengths,
            stride=lengths.size(0) // max(1, len(features)),
        )
        self._of = jagged
        self.asked: dict[str, JaggedTensor] = {}
        self._jt_dict = {feature: jagged(feature) for feature in features}

    def __getitem__(self, key: str) -> JaggedTensor:
        if key in self.to_dict():
            return self.to_dict()[key]
        return self.asked.setdefault(key, self._of(key))


class _Probe(nn.Module):
    """A stand-in for a collection that records where the IDs of its features come from."""

    def __init__(self, collection: FloatCollection, sharded: ShardedCollection) -> None:
        super().__init__()
        self.sharded = sharded
        self.names = _names(collection)
        self.is_weighted = isinstance(collection, EmbeddingBagCollection) and collection.is_weighted()
        self.feature_of = {
            name: feature
            for table, names in zip(
                float_tables(collection), embedding_names(float_tables(collection)), strict=True
            )
            for feature, name in zip(table.feature_names, names, strict=True)
        }
        self.calls: list[_Call] = []

    @property
    def own(self) -> set[fx.Node]:
        """The nodes of all lookups."""
        return {node for call in self.calls for node in call.own}

    def forward(self, features: KeyedJaggedTensor) -> object:
        values: object = features.values()
        if not isinstance(values, fx.Proxy):
            return self.sharded(features)
        graph = values.node.graph
        before = len(graph.nodes)
        keys = [name for name in self.names if name in features.keys()]  # noqa: SIM118
        call = _Call(ids={name: self._nodes(features[name]) for name in keys})
        self.calls.append(call)
        call.rows = self.sharded(features)
        call.own = set(list(graph.nodes)[before:])
        return call.rows

    def _nodes(self, jagged: JaggedTensor) -> tuple[list[fx.Node], list[fx.Node]]:
        weights = jagged.weights_or_none() if self.is_weighted else None
        return _nodes_in([jagged.values(), jagged.lengths()]), _nodes_in(weights)


class _Root(nn.Module):
    def __init__(self, model: nn.Module, dense: Sequence[str], features: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self.model = model
        self._dense, self._features = list(dense), features
        self.outputs: list[fx.Node] = []
        self.given: dict[str, _Given] = {}

    def forward(self, tensors: dict[str, Tensor]) -> object:
        kwargs: dict[str, object] = {name: tensors[name] for name in self._dense}
        self.given = {name: _Given(name, tensors, features) for name, features in self._features.items()}
        kwargs |= self.given
        # A holder of proxies could not leave a graph.
        self.outputs += _nodes_in(self.model(**kwargs))
        return tensors


def discover(
    model: nn.Module,
    arguments: tuple[Sequence[str], Sequence[str]],
    collections: Mapping[str, FloatCollection],
    skeletons: Mapping[str, ShardedCollection],
    declared: Mapping[str, Sequence[str]],
) -> Found:
    """Trace a model until the features of its arguments are known.

    Args:
        model: The float model.
        arguments: The names of its dense and of its sparse arguments.
        collections: Its collections by path.
        skeletons: For each of them a sharded collection without rows.
        declared: The features of sparse arguments as the user says.

    Raises:
        ExportError: The model cannot be traced.
    """
    dense, sparse = arguments
    known = list(dict.fromkeys(name for c in collections.values() for name in _names(c)))
    free = [name for name in known if all(name not in features for features in declared.values())]
    looked_up: dict[str, set[str]] = {name: set() for name in sparse}
    closed: set[str] = set()
    assumed: dict[str, list[str]] | None = None
    found, failure = Found(), None
    while True:
        now = {name: list(declared.get(name, ())) for name in sparse}
        for name in set(sparse) - set(declared):
            is_known = name in closed or bool(looked_up[name])
            now[name] = [f for f in known if f in looked_up[name]] if is_known else free
        if now == assumed:
            if failure is not None:
                raise failure
            return found
        assumed = now
        probes = {path: _Probe(collection, skeletons[path]) for path, collection in collections.items()}
        root = _Root(exchanged(model, probes), dense, now)
        try:
            graph, failure = trace(root), None
        except ExportError as error:
            graph, failure = None, error
        found = _found(probes, now)
        for name, features in found.features.items():
            looked_up[name] |= set(features)
        if graph is not None:
            closed |= {name for name in sparse if not looked_up[name]}
            _add_reads(found, root, graph, probes)
            _add_needs(found, root, probes)


def _names(collection: FloatCollection) -> list[str]:
    return list(dict.fromkeys(name for table in float_tables(collection) for name in table.feature_names))


def _found(probes: Mapping[str, _Probe], given: Mapping[str, Sequence[str]]) -> Found:
    """Return what the lookups of a trace read, given the features that each argument had."""
    found = Found(features={name: [] for name in given}, weighted={name: set() for name in given})
    for path, probe in probes.items():
        if not probe.calls:
            continue
        found.reached[path], found.computed[path] = set(), set()
        for call in probe.calls:
            for feature, (nodes, weights) in call.ids.items():
                sources = _sources(nodes, set())
                if probe.is_weighted and all(kind != _WEIGHTS for _, kind, _ in _sources(weights, set())):
                    found.weighing.add(path)
                holders = {
                    name
                    for name, kind, of in sources
                    if kind == _VALUES and (of == feature or (not of and feature in given[name]))
                }
                found.reached[path] |= holders
                if not holders:
                    found.computed[path].add(feature)
                for name in holders:
                    if feature not in found.features[name]:
                        found.features[name].append(feature)
    return found


def _add_reads(found: Found, root: _Root, graph: fx.Graph, probes: Mapping[str, _Probe]) -> None:
    """Add what the outputs and the computed IDs descend from, other than by lookups."""
    own = {node for probe in probes.values() for node in probe.own}
    sources = _sources([node for node in root.outputs if node not in own], own)
    for path, probe in probes.items():
        for call in probe.calls:
            for feature, (nodes, weights) in call.ids.items():
                if feature in found.computed[path]:
                    sources |= _sources(nodes, set())
                if path in found.weighing:
                    sources |= _sources(weights, set())
    found.graph, found.root = graph, root
    found.dense = {name for node in graph.nodes if node.users and (name := input_name(node)) is not None}
    for name, kind, feature in sorted(sources):
        if feature:
            if kind == _WEIGHTS:
                found.weighted[name].add(feature)
            if feature not in found.features[name]:
                found.features[name].append(feature)
    # What is asked for and goes nowhere must be there all the same.
    for name, given in root.given.items():
        found.features[name] += [feature for feature in given.asked if feature not in found.features[name]]


def _add_needs(found: Found, root: _Root, probes: Mapping[str, _Probe]) -> None:
    """Add which rows and which arguments the outputs descend from."""
    call_of = {node: call for probe in probes.values() for call in probe.calls for node in call.own}
    reached: dict[fx.Node, set[int]] = {}
    waiting: list[tuple[fx.Node, int]] = [(node, 0) for node in root.outputs]
    while waiting:
        node, user = waiting.pop()
        if node not in reached:
            own = id(call_of[node]) if node in call_of else 0
            waiting += [(source, own) for source in node.all_input_nodes]
        reached.setdefault(node, set()).add(user)
    # A node that the call itself made of another is reached by that call alone.
    for path, probe in probes.items():
        for call in probe.calls:
            outside = {node for node in call.own if reached.get(node, set()) - {id(call)}}
            names = _rows_in(call.rows, outside, {*reached} - call.own, {*root.outputs})
            call.needed = {probe.feature_of[name] for name in names}
            found.needed.setdefault(path, set()).update(call.needed)
    found.reached_inputs = {
        name.split(_BETWEEN)[0] for node in reached if (name := input_name(node)) is not None
    }


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
        return {name for name, jagged in named.items() if outside & {*_nodes_in(jagged)}}
    [values] = _nodes_in(rows.values())
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


def _sources(nodes: Iterable[fx.Node], stops: set[fx.Node]) -> set[tuple[str, str, str]]:
    """Return the inputs that nodes descend from: argument, what of it, and feature; empty texts where there is none."""
    found: set[tuple[str, str, str]] = set()
    seen: set[fx.Node] = set(stops)
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        name = input_name(node)
        if name is not None:
            argument, kind, feature = (*name.split(_BETWEEN, 2), "", "")[:3]
            found.add((argument, kind, feature))
        waiting += node.all_input_nodes
    return found


def input_name(node: fx.Node) -> str | None:
    """Return the name under which a node takes an input from the root's argument; that of a dense one is its own."""
    if node.op != "call_function" or len(node.args) != 2 or not isinstance(node.args[1], str):
        return None
    source = node.args[0]
    return node.args[1] if isinstance(source, fx.Node) and source.op == "placeholder" else None


def _nodes_in(output: Any) -> list[fx.Node]:
    """Return the nodes of an output, whatever it is made of."""
    if isinstance(output, fx.Proxy):
        return [output.node]
    if isinstance(output, (KeyedTensor, JaggedTensor, KeyedJaggedTensor)):
        return _nodes_in(list(vars(output).values()))
    if isinstance(output, dict):
        return _nodes_in(list(output.values()))
    if isinstance(output, (list, tuple)):
        return [node for part in output for node in _nodes_in(part)]
    return _nodes_in(list(vars(output).values())) if is_dataclass(output) else []
