"""Discovery: which features each sparse argument holds, and what of the inputs a model reads.

The model is traced with arguments that hold every feature that they may. What its lookups and its outputs descend
from tells which of them they are; then it is traced again with these alone, until nothing new is found.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from export.graph.modules import replace_modules
from export.graph.tracing.sizes import BatchSizes, Sizes, input_name
from export.graph.tracing.source_location import is_of_model
from export.graph.tracing.tracer import trace
from recsys.errors import ExportError
from recsys.jagged.keyed import KeyedTensor
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor
from recsys.sharding.sharded import ShardedCollection

_VALUES, _LENGTHS, _WEIGHTS = "values", "lengths", "weights"
# In the name of an input: its argument, what it is of it, and the feature if it is of one alone.
BETWEEN = "\n"
# Between the names of arguments that are put together.
_AND = "\t"
# What tells of all features of a KeyedJaggedTensor.
_AS_A_WHOLE = {
    *(
        "keys",
        "values",
        "weights",
        "weights_or_none",
        "lengths",
        "lengths_or_none",
        "offsets",
        "offsets_or_none",
    ),
    *("to_dict", "split", "permute", "index_per_key", "length_per_key", "offset_per_key", "stride_per_key"),
}


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What the user says of arguments.

    Attributes:
        dense_widths: Widths of dense arguments, where several would fit the model.
        features: The features of sparse arguments, where the trace cannot tell.
        floats: Those whose values are float32 numbers.
        optional: Arguments that are left out where the model's code does not use them.
        are_chosen: Whether some of the outputs are chosen, so that arguments that they need not are left out.
    """

    dense_widths: Mapping[str, int] = field(default_factory=dict)
    features: Mapping[str, Sequence[str]] = field(default_factory=dict)
    floats: Collection[str] = ()
    optional: Collection[str] = ()
    are_chosen: bool = False


@dataclass(kw_only=True)
class Call:
    """A call of a collection.

    Attributes:
        ids: For each feature the nodes of its IDs, and of its weights.
        rows: What the call returned.
        own: The nodes of the lookup.
        feature_of: The feature of each of the rows' names.
    """

    ids: dict[str, tuple[list[fx.Node], list[fx.Node]]]
    rows: Any = None
    own: set[fx.Node] = field(default_factory=set)
    feature_of: Mapping[str, str]


@dataclass(kw_only=True)
class InputUse:
    """What a model does with its inputs.

    Attributes:
        graph: The trace.
        features: The features of each sparse argument.
        reached: For each collection, by path, the arguments whose features it looks up under their own names.
        computed: For each collection the features whose IDs the model computes.
        weighing: The collections whose weights the model computes.
        weighted: For each argument, the features whose weights the model itself reads.
        dense: The dense arguments that the model's code uses.
        calls: The calls of each collection.
        outputs: The nodes of the outputs.
        widths: Of the dense arguments, as far as they are known.
        empty: The arguments that may as well hold nothing, and those that they are put together with.
        root: The module that was traced, and what is known of its sizes.
    """

    graph: fx.Graph = field(default_factory=fx.Graph)
    features: dict[str, list[str]] = field(default_factory=dict)
    reached: dict[str, set[str]] = field(default_factory=dict)
    computed: dict[str, set[str]] = field(default_factory=dict)
    weighing: set[str] = field(default_factory=set)
    weighted: dict[str, set[str]] = field(default_factory=dict)
    dense: set[str] = field(default_factory=set)
    calls: dict[str, list[Call]] = field(default_factory=dict)
    outputs: list[fx.Node] = field(default_factory=list)
    widths: dict[str, int] = field(default_factory=dict)
    empty: dict[str, set[str]] = field(default_factory=dict)
    root: tuple[_Root, Sizes] | None = None


class _Given(KeyedJaggedTensor):
    """An argument whose features have tensors of their own; a feature that is asked for by name is there."""

    def __init__(self, argument: str, tensors: Any, features: Sequence[str]) -> None:
        def tensor(kind: str, *feature: str) -> Tensor:
            found: Tensor = tensors[BETWEEN.join([argument, kind, *feature])]
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
        self.argument = argument
        #: Whether the model's own code reads it as a whole.
        self.is_read = False
        self.asked: dict[str, JaggedTensor] = {}
        self._jt_dict = {feature: jagged(feature) for feature in features}

    def __getitem__(self, key: str) -> JaggedTensor:
        if key in self.to_dict():
            return self.to_dict()[key]
        return self.asked.setdefault(key, self._of(key))

    def __getattribute__(self, name: str) -> Any:
        if name in _AS_A_WHOLE and is_of_model(sys._getframe(1).f_code.co_filename):
            self.is_read = True
        return super().__getattribute__(name)


class _Probe(nn.Module):
    """A stand-in for a collection that records where the IDs of its features come from."""

    def __init__(self, sharded: ShardedCollection, *, takes_weights: bool) -> None:
        super().__init__()
        self.sharded = sharded
        self.takes_weights = takes_weights
        self.feature_of = {pair.name: pair.feature for pair in sharded.layout.pairs}
        self.names = list(dict.fromkeys(self.feature_of.values()))
        self.calls: list[Call] = []

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
        call = Call(ids={name: self._nodes(features[name]) for name in keys}, feature_of=self.feature_of)
        self.calls.append(call)
        call.rows = self.sharded(features)
        call.own = set(list(graph.nodes)[before:])
        return call.rows

    def _nodes(self, jagged: JaggedTensor) -> tuple[list[fx.Node], list[fx.Node]]:
        weights = jagged.weights_or_none() if self.takes_weights else None
        return nodes_in([jagged.values(), jagged.lengths()]), nodes_in(weights)


@dataclass(frozen=True)
class _Tensors:
    """A batch, which replaces the traced module's inputs."""

    root: _Root
    sizes: BatchSizes

    def __getitem__(self, name: str) -> Tensor:
        return self.root.tensor(name, self.sizes)


class _Root(nn.Module):
    def __init__(self, model: nn.Module, dense: Sequence[str], features: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self.model = model
        self._dense, self._features = list(dense), features
        self.outputs: list[fx.Node] = []
        self.given: dict[str, _Given] = {}
        #: Arguments that are put together, and may hold the same features as far as is known.
        self.together: dict[tuple[str, ...], _Given] = {}

    def forward(self, tensors: dict[str, Tensor]) -> object:
        kwargs: dict[str, object] = {name: tensors[name] for name in self._dense}
        self.given = {name: _Given(name, tensors, features) for name, features in self._features.items()}
        kwargs |= self.given
        with self._concat_of(tensors):
            # A holder of proxies could not leave a graph.
            self.outputs += nodes_in(self.model(**kwargs))
        return tensors

    def example(self, sizes: BatchSizes) -> dict[str, Any]:
        """Return the argument of ``forward`` for a batch."""
        return {"tensors": _Tensors(self, sizes)}

    def tensor(self, name: str, sizes: BatchSizes) -> Tensor:
        """Return the input of a name for a batch."""
        argument, kind, feature = (*name.split(BETWEEN, 2), "", "")[:3]
        if not kind:
            return torch.empty(sizes.rows, sizes.width(argument))
        given = self.together.get(tuple(argument.split(_AND))) or self.given[argument]
        num_features = 1 if feature else len(given.keys())
        return sizes.sparse("", num_features * sizes.rows, is_weighted=True)[kind]

    @contextmanager
    def _concat_of(self, tensors: dict[str, Tensor]) -> Iterator[None]:
        """Let arguments that may hold the same features be put together: which one holds a feature is open."""
        plain = KeyedJaggedTensor.concat

        def concat(kjt_list: Sequence[KeyedJaggedTensor]) -> KeyedJaggedTensor:
            names = tuple(given.argument for given in kjt_list if isinstance(given, _Given))
            keys = [key for given in kjt_list for key in given.keys()]  # noqa: SIM118 (not a dict)
            if len(names) < len(kjt_list) or len(set(names)) < len(names) or len(set(keys)) == len(keys):
                return plain(kjt_list)
            return self.together.setdefault(
                names, _Given(_AND.join(names), tensors, list(dict.fromkeys(keys)))
            )

        KeyedJaggedTensor.concat = staticmethod(concat)  # type: ignore[method-assign]
        try:
            yield
        finally:
            KeyedJaggedTensor.concat = staticmethod(plain)  # type: ignore[method-assign]


def discover(
    model: nn.Module,
    arguments: tuple[Sequence[str], Sequence[str]],
    sharded: Mapping[str, ShardedCollection],
    weighted: Collection[str],
    declared: Declared,
) -> InputUse:
    """Trace a model until the features of its arguments are known.

    Args:
        model: The float model.
        arguments: The names of its dense and of its sparse arguments.
        sharded: Its collections by path, sharded and without rows.
        weighted: Those whose lookups take weights.
        declared: What the user says of arguments.

    Raises:
        ExportError: The model cannot be traced.
    """
    dense, sparse = arguments
    known = list(dict.fromkeys(name for one in sharded.values() for name in one.layout.features))
    holders = _Holders(sparse, known, declared.features)
    widths = dict(declared.dense_widths)
    is_known = False
    while not is_known:
        probes = {path: _Probe(one, takes_weights=path in weighted) for path, one in sharded.items()}
        root = _Root(replace_modules(model, probes), dense, holders.now)
        sizes = Sizes(root, root.example, widths)
        try:
            graph, failure = trace(root, sizes), None
        except ExportError as error:
            graph, failure = None, error
        is_open = sizes.learn(graph, dense)
        widths = sizes.widths
        if is_open:
            continue
        together = {_AND.join(names): given.keys() for names, given in root.together.items()}
        found = _found(probes, {**holders.now, **together})
        holders.add_lookups(found)
        if graph is not None:
            _add_reads(found, root, graph, probes)
        is_known = holders.learn(found, root, failure)
    found.empty = holders.empty(found)
    found.widths = widths
    found.root = (root, sizes)
    return found


class _Holders:
    """Which features each sparse argument holds, as far as is known.

    Args:
        sparse: The arguments.
        known: The features of all collections.
        declared: What the user says of some arguments.

    Attributes:
        now: What the arguments are traced with.
    """

    def __init__(
        self, sparse: Sequence[str], known: Sequence[str], declared: Mapping[str, Sequence[str]]
    ) -> None:
        self._known, self._declared = known, declared
        self._free = [name for name in known if all(name not in features for features in declared.values())]
        self._looked_up: dict[str, set[str]] = {name: set() for name in sparse}
        self._closed: set[str] = set()
        self._together: dict[str, set[str]] = {}
        # Whether an argument of which nothing is known holds no feature that others hold.
        self._is_apart = False
        self.now = self._assumed()

    def _assumed(self) -> dict[str, list[str]]:
        taken = {feature for features in self._looked_up.values() for feature in features if self._is_apart}
        assumed = {}
        for name, features in self._looked_up.items():
            if name in self._declared:
                assumed[name] = list(self._declared[name])
            elif name in self._closed or features:
                assumed[name] = [f for f in self._known if f in features]
            else:
                assumed[name] = [f for f in self._free if f not in taken]
        return assumed

    def add_lookups(self, found: InputUse) -> None:
        """Add the features that collections were given of each argument."""
        for name, features in self._looked_up.items():
            features |= set(found.features[name])

    def learn(self, found: InputUse, root: _Root, failure: ExportError | None) -> bool:
        """Take what else a trace found; return whether nothing is left to find.

        Raises:
            ExportError: The trace failed, or it is open which of several arguments holds a feature.
        """
        if failure is None:
            self._closed |= {name for name, features in self._looked_up.items() if not features}
            for names in root.together:
                self._place(names, found.features[_AND.join(names)], root)
        if failure is not None and self.now == self._assumed():
            self._is_apart = True
        if self.now != self._assumed():
            self.now = self._assumed()
            return False
        if failure is not None:
            raise failure
        for names in root.together:
            raise _ambiguous(names, root.together[names].keys())
        return True

    def _place(self, names: tuple[str, ...], features: Sequence[str], root: _Root) -> None:
        """Give one of several arguments that are put together the features that none of them is known to hold.

        Which one makes no difference if nothing reads them apart.
        """
        left = [name for name in features if all(name not in self._looked_up[one] for one in names)]
        takers = [name for name in names if name not in self._declared]
        if left and (not takers or any(root.given[name].is_read for name in names)):
            raise _ambiguous(names, features)
        if left:
            self._looked_up[takers[0]] |= set(left)
        self._together |= {name: set(names) for name in names}

    def empty(self, found: InputUse) -> dict[str, set[str]]:
        """Return the arguments that may as well hold nothing, and those that they are put together with."""
        return {
            name: names
            for name, names in self._together.items()
            if not found.features[name] and name not in self._declared
        }


def _ambiguous(names: Sequence[str], features: Sequence[str]) -> ExportError:
    options = " ".join(f"--features {name}=F1,F2" for name in names)
    return ExportError(
        f"forward({', '.join(names)}): cannot tell which of them holds which of the features {', '.join(features)}: "
        f"they are put together, and read apart. Say it: {options}"
    )


def _found(probes: Mapping[str, _Probe], given: Mapping[str, Sequence[str]]) -> InputUse:
    """Return what the lookups of a trace read, given the features that each argument had."""
    found = InputUse(features={name: [] for name in given}, weighted={name: set() for name in given})
    # IDs that follow from rows, such as those of the best, are computed.
    rows = {node for probe in probes.values() for call in probe.calls for node in _of_rows(call.rows)}
    for path, probe in probes.items():
        if not probe.calls:
            continue
        found.reached[path], found.computed[path] = set(), set()
        for call in probe.calls:
            for feature, (nodes, weights) in call.ids.items():
                sources = _sources(nodes, rows)
                if probe.takes_weights and all(kind != _WEIGHTS for _, kind, _ in _sources(weights, set())):
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


def _of_rows(found: Any) -> list[fx.Node]:
    """Return the nodes of the rows that a lookup returns."""
    if isinstance(found, dict):
        return [node for one in found.values() for node in _of_rows(one)]
    return nodes_in(found.values()) if isinstance(found, (KeyedTensor, JaggedTensor)) else []


def _add_reads(found: InputUse, root: _Root, graph: fx.Graph, probes: Mapping[str, _Probe]) -> None:
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
    found.graph, found.outputs = graph, root.outputs
    found.calls = {path: probe.calls for path, probe in probes.items()}
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
            argument, kind, feature = (*name.split(BETWEEN, 2), "", "")[:3]
            found.add((argument, kind, feature))
        waiting += node.all_input_nodes
    return found


def nodes_in(output: Any) -> list[fx.Node]:
    """Return the nodes of an output, whatever it is made of."""
    if isinstance(output, fx.Proxy):
        return [output.node]
    if isinstance(output, (KeyedTensor, JaggedTensor, KeyedJaggedTensor)):
        return nodes_in(list(vars(output).values()))
    if isinstance(output, dict):
        return nodes_in(list(output.values()))
    if isinstance(output, (list, tuple)):
        return [node for part in output for node in nodes_in(part)]
    return nodes_in(list(vars(output).values())) if is_dataclass(output) else []
