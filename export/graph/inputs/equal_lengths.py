"""Features whose bags must have equal lengths, row by row, because the model puts their IDs side by side.

Such as ``cat([items.values(), shops.values()], dim=1)``, or the times of a history that are padded by the offsets of
its items. The trace of ``discover`` is run for a batch in which each feature has a number of IDs of its own, as a
symbol: an operation that does not take two of them says which must be equal.

Shape letters: B batch, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sympy
import torch
from torch import Tensor, fx, nn

from export.graph.inputs.features import BETWEEN, InputUse
from export.graph.jagged_operators import bags_of
from export.graph.tracing.sizes import SYMBOLIC, Example, Run, descendants, input_name
from recsys.jagged.tensor import JaggedTensor

#: A feature of a sparse argument.
Feature = tuple[str, str]
# What keeps the bags that lengths or offsets stand for.
_SAME_BAGS = {"clamp", "clamp_min", "to", "long", "int", "contiguous", "view", "reshape", "flatten", "diff"}
_CUMSUMS = {"asynchronous_complete_cumsum", "cumsum"}


def equal_lengths(found: InputUse) -> list[list[Feature]]:
    """Return groups of features whose bags must have equal lengths."""
    if found.root is None:
        return []
    root, sizes = found.root
    groups = _Groups()
    while True:
        with sizes.running():
            run = _Run(root, found, root.example, sizes.widths, groups)
            if not run.find():
                return groups.of_several()


class _Groups:
    """Features in groups, each with its first one's name."""

    def __init__(self) -> None:
        self._first: dict[Feature, Feature] = {}

    def first(self, feature: Feature) -> Feature:
        while self._first.setdefault(feature, feature) != feature:
            feature = self._first[feature]
        return feature

    def unite(self, a: Feature, b: Feature) -> bool:
        """Put two into one group; return whether they were in two."""
        a, b = self.first(a), self.first(b)
        self._first[b] = a
        return a != b

    def of_several(self) -> list[list[Feature]]:
        groups: dict[Feature, list[Feature]] = {}
        for feature in self._first:
            groups.setdefault(self.first(feature), []).append(feature)
        return [group for group in groups.values() if len(group) > 1]


class _Run(Run):
    """The trace, run for a batch in which each group of features has a number of IDs of its own."""

    def __init__(
        self, root: nn.Module, found: InputUse, example: Example, widths: Mapping[str, int], groups: _Groups
    ) -> None:
        super().__init__(root, found.graph, example, widths)
        self._groups = groups
        self._features = found.features
        self._own = {node for calls in found.calls.values() for call in calls for node in call.own}
        self._ids: dict[Feature, Any] = {}
        # The nodes of lookups' rows, and of the lengths and offsets beside them, by feature.
        self._rows: dict[fx.Node, Feature] = {}
        self._bags: dict[fx.Node, Feature] = {}
        for feature, jagged in _looked_up(found):
            for parts, kept in ((jagged.values(), self._rows), (jagged.lengths_or_none(), self._bags)):
                if isinstance(parts, fx.Proxy):
                    kept[parts.node] = feature
            offsets = jagged.offsets_or_none()
            if isinstance(offsets, fx.Proxy):
                self._bags[offsets.node] = feature

    def find(self) -> bool:
        """Unite the groups of the first two features that must have equal lengths; return whether there are two."""
        sources = self._of_ids()
        if len({*sources.values(), *self._bags.values(), *self._read("lengths").values()}) < 2:
            return False
        # Nodes whose sizes follow from numbers of IDs.
        following, failed = set(sources), set[fx.Node]()
        # What the model makes of IDs and of their rows: no other sizes follow from their number.
        for node in descendants(self.graph, list(sources), without=self._own):
            if failed.intersection(node.all_input_nodes):
                failed.add(node)
                continue
            if following.isdisjoint(node.all_input_nodes):
                continue
            try:
                if self._follows(self.value(node)):
                    following.add(node)
            except Exception:  # torch's, and the model's: what cannot be run without numbers tells nothing
                failed.add(node)
                if self._unite_of_guards():
                    return True
            if self._unite_of_bags(node):
                return True
        return False

    def _of_ids(self) -> dict[fx.Node, Feature]:
        """Return the nodes that have as many rows as a feature has IDs: its inputs, and its rows of tables."""
        return {**self._read("values"), **self._read("weights"), **self._rows}

    def _read(self, kind: str) -> dict[fx.Node, Feature]:
        """Return the nodes that take the values, weights or lengths of one feature."""
        return {node: feature for node in self.graph.nodes if (feature := self._input(node, kind))}

    def _follows(self, value: Any) -> bool:
        """Return whether sizes of a value may follow from a number of IDs."""
        if isinstance(value, (tuple, list)):
            return any(map(self._follows, value))
        if isinstance(value, Tensor):
            return any(map(self._follows, value.shape))
        if not isinstance(value, SYMBOLIC):
            return not isinstance(value, (int, float))
        symbols = {size.node.expr for size in self._ids.values()}
        return not symbols.isdisjoint(value.node.expr.free_symbols)

    def run_node(self, n: fx.Node) -> Any:
        """Run a node; the inputs and the rows of a feature have as many IDs as the feature."""
        value = super().run_node(n)
        feature = self._rows.get(n) or self._input(n, "values") or self._input(n, "weights")
        if feature is None or not isinstance(value, Tensor):
            return value
        return value.new_empty((self._num_ids(feature), *value.shape[1:]))

    def _input(self, node: fx.Node, kind: str) -> Feature | None:
        """Return the feature of which a node takes the values, weights or lengths; None for other nodes."""
        argument, of, feature = (*(input_name(node) or "").split(BETWEEN, 2), "", "")[:3]
        features = self._features.get(argument, [])
        if of == kind and not feature and len(features) == 1:
            feature = features[0]
        return (argument, feature) if of == kind and feature else None

    def _num_ids(self, feature: Feature) -> Any:
        first = self._groups.first(feature)
        if first not in self._ids:
            self._ids[first] = self.sizes.another()
        return self._ids[first]

    def _unite_of_guards(self) -> bool:
        """Unite what the operation that has just failed has compared."""
        of_symbol = {size.node.expr: feature for feature, size in self._ids.items()}
        for guard in self.sizes.symbols.guards[self.before :]:
            for one in guard.expr.atoms(sympy.Eq, sympy.Ne):
                features = [of_symbol[symbol] for symbol in one.free_symbols if symbol in of_symbol]
                if len(features) == 2 and one.free_symbols <= set(of_symbol):
                    return self._groups.unite(*sorted(features))
        return False

    def _unite_of_bags(self, node: fx.Node) -> bool:
        """Unite the features of which a jagged operator takes rows, and those of which it takes lengths or offsets."""
        of_symbol = {size.node.expr: feature for feature, size in self._ids.items()}
        for rows, bags in bags_of(node):
            of_bags = self._feature_of_bags(bags)
            value = self.env.get(rows)
            if of_bags is None or not isinstance(value, Tensor) or not value.dim():
                continue
            size = value.shape[0]
            of_rows = of_symbol.get(size.node.expr) if isinstance(size, torch.SymInt) else None
            if of_rows is not None and self._groups.unite(of_rows, of_bags):
                return True
        return False

    def _feature_of_bags(self, node: fx.Node) -> Feature | None:
        """Return the feature whose bags lengths or offsets stand for; None where it is open."""
        while True:
            feature = self._bags.get(node) or self._input(node, "lengths")
            if feature is not None:
                return feature
            name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
            name = name.rpartition(".")[2] or str(node.target)
            sources = dict.fromkeys(node.all_input_nodes)
            if len(sources) != 1 or not (
                name in _SAME_BAGS or name in _CUMSUMS or "cumsum" in str(node.target)
            ):
                return None
            [node] = sources


def _looked_up(found: InputUse) -> Iterator[tuple[Feature, JaggedTensor]]:
    """Return the rows of each feature that came with the request, as lookups return them."""
    for path, calls in found.calls.items():
        for call in calls:
            for name, jagged in call.rows.items() if isinstance(call.rows, dict) else ():
                feature = call.feature_of.get(name)
                holders = [a for a in found.reached[path] if feature in found.features[a]]
                is_given = feature is not None and feature not in found.computed[path]
                if is_given and len(holders) == 1 and isinstance(jagged, JaggedTensor):
                    yield (holders[0], str(feature)), jagged
