"""Torch regions: the parts of a traced graph that no step computes, each a graph of TorchScript of its own.

What steps compute reaches a region as ``[B, width]``, and what a region computes reaches steps so. Levels order them:
steps of level 0 descend from no region, a region of level k from steps below k, and steps of level k from regions up
to k.

Shape letters: B rows, Q contexts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from export.graph.passes import compiled
from export.graph.prepared import PreparedModel
from export.graph.tracing.recorder import Recorder
from export.lower.bags import FlatSpace, Rows, computed_ids
from export.lower.effects import Group
from export.lower.leaves import LEAVES
from export.lower.values import (
    Called,
    NotLoweredError,
    Space,
    Value,
    Weight,
)
from export.verify.samples import with_numbers_of
from recsys.artifact.batches.ranking import ranking_batch
from recsys.artifact.batches.samples import Batch, random_batch
from recsys.scripting import torchscript

# Rows and contexts of batches. The sizes differ from each other, and from those of most models.
_BATCHES = ((13, 5), (17, 7), (29, 11))
_SEED = 20261126


@dataclass(frozen=True, eq=False, kw_only=True)
class Outside:
    """What torch computes.

    Attributes:
        why: Why no step does.
    """

    node: fx.Node
    why: str


@dataclass(eq=False, kw_only=True)
class FromRegion(Value):
    """A tensor that a region computes."""

    node: fx.Node


@dataclass(frozen=True, kw_only=True)
class Region:
    """A slice of the graph.

    Attributes:
        script: It as TorchScript: a function of tensors that returns a tuple of tensors.
        inputs: What it takes: inputs of the graph by name, values as ``[B, width]``, or what another region returns.
        outputs: What it returns: values as ``[B, width]``, or nodes as they are.
        weights: The paths of its dense weights, by the paths of its attributes.
    """

    script: bytes
    inputs: list[str | Value | fx.Node]
    outputs: list[Value | fx.Node]
    weights: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Needed:
    """What outputs are made of.

    Attributes:
        levels: The values, in the order of the model's code, each with the level of the steps that compute it.
        regions: What torch computes, by level.
        taken: The values that regions read.
    """

    levels: dict[Value, int]
    regions: dict[int, Region]
    taken: list[Value]


class Shapes:
    """The shapes of a graph's tensors in batches with bags of many sizes, with made up rows of tables.

    Args:
        module: The graph.
        prepared: The model.
        is_ranking: Whether it is the ranking form.

    Raises:
        NotLoweredError: The graph does not run so.
    """

    def __init__(self, module: fx.GraphModule, prepared: PreparedModel, *, is_ranking: bool) -> None:
        self._sizes = _BATCHES
        self._found: list[dict[fx.Node, Tensor]] = []
        for num_rows, num_contexts in _BATCHES:
            recorder = Recorder(module)
            run_on_samples(recorder, prepared, (num_rows, num_contexts), is_ranking=is_ranking)
            self._found.append(recorder.found)

    def is_tensor(self, node: fx.Node) -> bool:
        """Return whether a node is a tensor."""
        return node in self._found[0]

    def of_rows(self, node: fx.Node) -> tuple[Space, tuple[int, ...]] | None:
        """Return the space and the dimensions of a row of a node that is ``[B, ...]`` float32; else None."""
        if any(node not in found or found[node].dtype is not torch.float32 for found in self._found):
            return None
        shapes = [tuple(found[node].shape) for found in self._found]
        if not shapes[0] or any(shape[1:] != shapes[0][1:] for shape in shapes) or 0 in shapes[0][1:]:
            return None
        for space, sizes in zip((Space.ROWS, Space.CONTEXTS), zip(*self._sizes, strict=True), strict=True):
            if tuple(shape[0] for shape in shapes) == sizes:
                return space, shapes[0][1:]
        return None


def run_on_samples(
    interpreter: fx.Interpreter,
    prepared: PreparedModel,
    sizes: tuple[int, int] = _BATCHES[0],
    *,
    is_ranking: bool,
) -> None:
    """Run a graph.

    Args:
        interpreter: Runs it.
        prepared: The model.
        sizes: Rows and contexts.
        is_ranking: Whether it is the ranking form.

    Raises:
        NotLoweredError: It does not run for made up rows.
    """
    try:
        with torch.no_grad():
            interpreter.run(*_inputs(prepared, *sizes, is_ranking=is_ranking))
    except Exception as error:  # whatever the model's code raises
        raise NotLoweredError(f"it does not run for made up rows: {error}"[:200]) from error


def _inputs(prepared: PreparedModel, num_rows: int, num_contexts: int, *, is_ranking: bool) -> list[Tensor]:
    """Return inputs of a batch. Of a feature the IDs are hardly as many as the rows in all batches."""
    signature = prepared.signature
    generator = torch.Generator().manual_seed(_SEED + num_rows)

    def batch(size: int) -> Batch:
        rows = random_batch(signature, size, generator, known_ids=prepared.managed.known_ids)
        return with_numbers_of(prepared.clean, rows, signature)

    if not is_ranking:
        return batch(num_rows).inputs()
    row_context = torch.arange(num_rows) % num_contexts
    return ranking_batch(signature, batch(num_contexts), batch(num_rows), row_context).inputs()


def _made_of(value: Value) -> list[fx.Node]:
    """Return the nodes outside that a value is made of."""
    if isinstance(value, FromRegion):
        return [value.node]
    computed = computed_ids(value)
    return [] if computed is None else computed.nodes


class Regions:
    """What is computed outside of steps.

    Args:
        module: The graph.
        results: What each node was evaluated to, of those that were evaluated.
        prepared: The model.
        groups: Nodes that write to tensors, each with those that must be computed with it.
        is_ranking: Whether it is the ranking form.

    Attributes:
        groups: By node, those that must be computed with it.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        results: Mapping[fx.Node, Any],
        prepared: PreparedModel,
        groups: Iterable[Group] = (),
        *,
        is_ranking: bool,
    ) -> None:
        self._module = module
        self._results = results
        self._prepared = prepared
        self._is_ranking = is_ranking
        self._shapes: Shapes | None = None
        self._values: dict[fx.Node, FromRegion] = {}
        self._settled: dict[fx.Node, Value | None] = {}
        self._levels: dict[fx.Node, int] = {}
        self._value_levels: dict[Value, int] = {}
        self._checks: list[fx.Node] = []
        self.groups = {node: group for group in groups for node in group}
        # What has several names is known by the first one.
        self._paths = {tensor: path for path, tensor in [*module.named_parameters(), *module.named_buffers()]}

    @property
    def shapes(self) -> Shapes:
        """The shapes of the graph's tensors."""
        if self._shapes is None:
            self._shapes = Shapes(self._module, self._prepared, is_ranking=self._is_ranking)
        return self._shapes

    def add_check(self, node: fx.Node) -> None:
        """Let a region run what only raises an error, or not, before all else."""
        self._checks.append(node)

    def value_of(self, outside: Outside) -> FromRegion:
        """Return what a step takes of a region.

        Raises:
            NotLoweredError: Steps do not take such tensors.
        """
        node = outside.node
        if node not in self._values:
            try:
                found = self.shapes.of_rows(node)
            except NotLoweredError as error:
                raise NotLoweredError(outside.why) from error
            if found is None:
                raise NotLoweredError(outside.why)
            space, dims = found
            self._values[node] = FromRegion(dims=dims, space=space, node=node)
        return self._values[node]

    def needed(self, outputs: Iterable[Value | Outside]) -> Needed:
        """Return what outputs are made of."""
        values: set[Value] = set()
        nodes: dict[fx.Node, None] = {}
        ends: list[Value | fx.Node] = [one.node if isinstance(one, Outside) else one for one in outputs]
        open_items = [*ends, *self._checks]
        while open_items:
            item = open_items.pop()
            if item in values or item in nodes:
                continue
            if isinstance(item, fx.Node):
                nodes[item] = None
                open_items += [one for one in self._taken_by(item) if not isinstance(one, str)]
            else:
                values.add(item)
                open_items += item.sources
                open_items += _made_of(item)
        in_order = sorted(values, key=lambda value: value.number)
        from_regions = [value for value in in_order if isinstance(value, FromRegion)]
        looked_up = [
            node for value in in_order if not isinstance(value, FromRegion) for node in _made_of(value)
        ]
        taken = [(node, one) for node in nodes for one in self._taken_by(node)]
        between = [
            one for node, one in taken if isinstance(one, fx.Node) and self._level(one) < self._level(node)
        ]
        outside = [one for one in ends if isinstance(one, fx.Node)]
        wanted: list[Value | fx.Node] = [*from_regions, *outside, *looked_up, *between]
        wanted = list(dict.fromkeys(wanted))
        return Needed(
            levels={value: self._value_level(value) for value in in_order},
            regions={level: self._made(level, wanted) for level in sorted(set(map(self._level, nodes)))},
            taken=list(dict.fromkeys(one for _, one in taken if isinstance(one, Value))),
        )

    def _value_level(self, value: Value) -> int:
        """Return the level of the steps that compute a value."""
        if value not in self._value_levels:
            levels = [self._level(node) for node in _made_of(value)]
            self._value_levels[value] = max([0, *levels, *map(self._value_level, value.sources)])
        return self._value_levels[value]

    def _made(self, level: int, wanted: Sequence[Value | fx.Node]) -> Region:
        outputs = [
            one
            for one in wanted
            if self._level(one.node if isinstance(one, FromRegion) else one) == level  # type: ignore[arg-type]
        ]
        slicing = _Slice(self, level)
        for node in self._checks:
            if self._level(node) == level:
                slicing.output(node)
        if not outputs:
            # A region that only checks returns no number.
            outputs += [node for node in self._checks if self._level(node) == level][:1]
            made = [slicing.nothing()]
        else:
            made = [slicing.output(one) for one in outputs]
        module = slicing.module(self._module, made)
        named = [
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ]
        return Region(
            script=bytes(torchscript.data_of(compiled(module, {}))),
            inputs=slicing.inputs,
            outputs=outputs,
            weights={name: self._paths[tensor] for name, tensor in named if tensor in self._paths},
        )

    def _level(self, node: fx.Node) -> int:
        """Return the level of the region that computes a node."""
        if node not in self._levels:
            self._levels[node] = 1
            self._levels[node] = max([1, *map(self._level_of_taken, self._taken_by(node))])
        return self._levels[node]

    def _level_of_taken(self, one: str | Value | fx.Node) -> int:
        if isinstance(one, str):
            return 0
        return self._level(one) if isinstance(one, fx.Node) else self._value_level(one) + 1

    def _taken_by(self, node: fx.Node) -> list[str | Value | fx.Node]:
        """Return what a node outside, or its group, reads: inputs of the graph by name, values, and nodes outside."""
        found: list[str | Value | fx.Node] = []
        group = self.groups.get(node, (node,))
        read = dict.fromkeys(one for each in group for one in each.all_input_nodes if one not in group)
        try:
            for one in read:
                taken = self.taken(one)
                found += self._taken_by(one) if taken is None else [taken]
        except NotLoweredError as error:
            result = self._results.get(node)
            if isinstance(result, Outside):
                raise NotLoweredError(result.why) from error
            raise
        return found

    def taken(self, node: fx.Node) -> str | Value | fx.Node | None:
        """Return what a region reads in place of a node; None if it computes it again.

        Raises:
            NotLoweredError: It can do neither.
        """
        if node.op == "placeholder":
            return str(node.target)
        result = self._results.get(node)
        if isinstance(result, Outside):
            # Each region computes again what is no tensor.
            return node if self.shapes.is_tensor(node) else None
        if node not in self._settled:
            self._settled[node] = self._settle(node, result)
        value = self._settled[node]
        if value is None and node.target in LEAVES:
            raise NotLoweredError("torch computes with what no step looks up")
        return value

    def _settle(self, node: fx.Node, result: Any) -> Value | None:
        if isinstance(result, Rows) and node.target in LEAVES:
            return result.flat
        if not isinstance(result, Called):
            return None
        try:
            value = result.settled()
        except NotLoweredError:
            return None
        if isinstance(value, Value) and isinstance(value.space, FlatSpace) and node.target in LEAVES:
            return value
        is_value = isinstance(value, Value) and not isinstance(value, Weight)
        if not is_value or value.dtype is not torch.float32:
            return None
        return value if self.shapes.of_rows(node) == (value.space, value.dims) else None


class _Slice:
    """A region's graph while it is made."""

    def __init__(self, regions: Regions, level: int) -> None:
        self._regions = regions
        self._level = level
        self._graph = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}
        self._places: dict[str | Value | fx.Node, fx.Node] = {}
        self.inputs: list[str | Value | fx.Node] = []

    def output(self, wanted: Value | fx.Node) -> fx.Node:
        """Return the node that gives an output."""
        if isinstance(wanted, fx.Node):
            return self._copy(wanted)
        assert isinstance(wanted, FromRegion)
        node = self._copy(wanted.node)
        shape = (-1, wanted.width)
        return node if len(wanted.dims) == 1 else self._graph.call_method("reshape", (node, shape))

    def nothing(self) -> fx.Node:
        """Return the node of a tensor without numbers."""
        return self._graph.call_function(torch.zeros, (0,))

    def module(self, root: fx.GraphModule, outputs: Sequence[fx.Node]) -> fx.GraphModule:
        """Return the graph with its attributes."""
        self._graph.output(tuple(outputs))
        return fx.GraphModule(root, self._graph)

    def _copy(self, node: fx.Node) -> fx.Node:
        if node not in self._copies:
            taken = self._regions.taken(node)
            is_own = taken is None or (taken is node and self._regions._level(node) == self._level)
            if not is_own:
                assert taken is not None
                self._copies[node] = self._place(taken)
            else:
                group = self._regions.groups.get(node, (node,))
                for one in dict.fromkeys(one for each in group for one in each.all_input_nodes):
                    if one not in group:
                        self._copy(one)
                for each in group:
                    self._copies[each] = self._graph.node_copy(each, lambda one: self._copies[one])
        return self._copies[node]

    def _place(self, taken: str | Value | fx.Node) -> fx.Node:
        if taken not in self._places:
            self.inputs.append(taken)
            self._places[taken] = self._graph.placeholder(f"input_{len(self.inputs)}")
        place = self._places[taken]
        if not isinstance(taken, Value) or len(taken.dims) == 1:
            return place
        return self._graph.call_method("reshape", (place, (-1, *taken.dims)))
