"""In a traced graph of the ranking form, what descends from contexts alone is computed once for each of them.

The graph repeats what contexts have for their rows before anything is computed of it. Here each node that reads only
what is repeated, and that values show to compute row b of row b alone, is copied to read what contexts have; its result
is repeated where other nodes read it. Operators that no step of a program knows, and what reads them, stay as they are.

Shape letters: B rows, Q contexts, N number of IDs, D embedding dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx

from export.graph.graph import Traced
from export.graph.passes import is_pure
from export.graph.ranking import Expanded, Expansion
from export.lower.bags import IdsSpace, Length, Rows, Slot, ids_space
from export.lower.effects import calls_code
from export.lower.operators.sequences import Ids
from export.lower.spaces.contexts import Contexts, NodeFunctions, flat, is_value
from export.lower.spaces.report import Journal
from export.lower.strided import Strided
from export.lower.values import Called, Expand, NumRows, Space, Value, set_path
from recsys.ops import fbgemm

# What returns a view, or copies for each row what it reads of one.
_VIEWS = {
    "view", "reshape", "flatten", "unsqueeze", "squeeze", "transpose", "swapaxes", "permute", "t", "expand", "narrow",
    "select", "getitem", "unbind", "split", "chunk", "tensor_split", "split_with_sizes", "repeat", "detach", "to",
    "contiguous", "clone", "type_as", "repeat_interleave",
}  # fmt: skip


def sink_expansions(traced: Traced) -> None:
    """Compute on contexts what can be, in a traced ranking form, whose module is changed.

    Nothing changes in graphs that write to what descends from contexts.
    """
    expansion = traced.root.expansion
    if expansion is None or not expansion.expanded:
        return
    functions = NodeFunctions(traced.module, ())
    try:
        found = _Analysis(traced.module, functions, expansion).run()
    finally:
        for tensor in functions.weights.values():
            set_path(tensor, None)
    if found is not None:
        _Sinking(traced.module, expansion, found).run()


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What is known of a graph.

    Attributes:
        values: What the nodes make that descend from contexts, or from the number of rows, alone: those that can be
            computed for contexts.
        seeds: The nodes of them that repeat something of contexts.
        counts: Those that are the number of rows, and descend from nothing else.
        sized: Those that descend from numbers of rows, and from no numbers of a row.
        same: Those that make the same for contexts as for rows, such as the width of a tensor.
        bags: The number of each feature in spaces of IDs.
    """

    values: Mapping[fx.Node, Any]
    seeds: Mapping[fx.Node, Expanded]
    counts: set[fx.Node]
    sized: set[fx.Node]
    same: set[fx.Node]
    bags: Mapping[tuple[str, str], int]


class _Analysis:
    """Evaluates what descends from contexts alone."""

    def __init__(self, module: fx.GraphModule, functions: NodeFunctions, expansion: Expansion) -> None:
        self._module = module
        self._functions = functions
        self._expansion = expansion
        self._contexts = Contexts(Journal())
        self._lengths: dict[tuple[str, str], Value] = {}
        self._ids: dict[tuple[str, str], Ids] = {}
        #: What nodes make that are the same for every batch.
        self._constants: dict[fx.Node, Any] = {}
        self._values: dict[fx.Node, Any] = {}
        self._counts: set[fx.Node] = set()
        self._sized: set[fx.Node] = set()
        self._same: set[fx.Node] = set()

    def run(self) -> _Found | None:
        """Return what is found; None if the graph writes to what descends from contexts."""
        bags = sorted({one.bags for one in self._expansion.expanded.values() if one.bags is not None})
        numbers = {one: i for i, one in enumerate(bags)}
        seeds = {
            node: self._expansion.expanded[node.name]
            for node in self._module.graph.nodes
            if node.name in self._expansion.expanded
        }
        row_contexts = {_name_of(self._expansion.on_host), _name_of(self._expansion.row_context)}
        descend: set[fx.Node] = set(seeds)
        for node in self._module.graph.nodes:
            if node in seeds:
                self._values[node] = self._seed(seeds[node], numbers)
                continue
            if _is_number_of_rows(node, row_contexts):
                self._values[node] = NumRows(Space.ROWS)
                self._counts.add(node)
                self._sized.add(node)
                continue
            is_below = not descend.isdisjoint(node.all_input_nodes)
            if is_below:
                descend.add(node)
            if node.op in ("placeholder", "output"):
                continue
            is_safe = is_pure(self._module, node) and not calls_code(node)
            if not is_safe and is_below and node.target is not fbgemm.bounds_check_indices:
                return None
            if is_safe:
                self._evaluate(node)
        return _Found(
            values=self._values, seeds=seeds, counts=self._counts, sized=self._sized, same=self._same, bags=numbers
        )  # fmt: skip

    def _seed(self, one: Expanded, numbers: Mapping[tuple[str, str], int]) -> Value | Ids:
        if one.bags is None:
            assert one.dims is not None
            return Expand(dims=one.dims, source=Value(dims=one.dims, space=Space.CONTEXTS))
        number = numbers[one.bags]
        if one.dims is None:
            if one.bags not in self._lengths:
                lengths = Length(dims=(), space=Space.CONTEXTS, dtype=torch.int64, feature=number)
                self._lengths[one.bags] = Expand(dims=(), dtype=torch.int64, source=lengths)
            return self._lengths[one.bags]
        if not one.dims:
            if one.bags not in self._ids:
                self._ids[one.bags] = Ids(Space.CONTEXTS, len(numbers), number, is_expanded=True)
            return self._ids[one.bags]
        (dim,) = one.dims
        slot = Slot(
            offset=0, num_rows=1, type_code=0, dim=dim, column=0, modulus=0, last_id=-1, feature=number
        )
        return self._contexts.expanded_rows(
            Rows(
                slots=(slot,), block_dims=(dim,), dims=(dim,), space=ids_space(Space.CONTEXTS, number, False),
                flat=None, computed=None,
            )
        )  # fmt: skip

    def _evaluate(self, node: fx.Node) -> None:
        """Find out what a node makes, if it descends from contexts and constants alone."""
        inputs = node.all_input_nodes
        if not all(one in self._values or one in self._constants for one in inputs):
            return
        try:
            if node.op == "get_attr":
                self._constants[node] = self._functions.attribute(str(node.target))
                return
            args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), self._known)
            with torch.no_grad():
                if all(one in self._constants for one in inputs):
                    self._constants[node] = self._functions.made(node, args, kwargs)
                    return
                if all(one in self._constants or one in self._same for one in inputs):
                    self._values[node] = self._functions.made(node, args, kwargs)
                    self._same.add(node)
                elif all(self._is_of_sizes(one) for one in inputs):
                    self._values[node] = self._functions.made(node, args, kwargs)
                    self._sized.add(node)
                else:
                    self._values[node] = self._of_contexts(node, args, kwargs)
        except Exception:  # torch's layers can raise anything for what are no tensors
            return
        if not any(map(is_value, flat(self._values[node]))):
            self._same.add(node)

    def _is_of_sizes(self, node: fx.Node) -> bool:
        """Return whether what a node makes has no numbers of a row."""
        if node in self._constants or node in self._same or node in self._sized:
            return True
        return not any(isinstance(one, Called) for one in flat(self._values[node]))

    def _of_contexts(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """Return what a node makes of contexts.

        Raises:
            NotLoweredError: No step does it, or not for contexts.
        """
        if node.target == "to" and len(args) == 2 and not kwargs and _is_float_dtype(args[1]):
            # Programs compute in float32; which float type it is does not matter here.
            return args[0]
        return self._contexts.applied(lambda *given: self._functions.made(node, *given), args, kwargs)

    def _known(self, node: fx.Node) -> Any:
        return self._values[node] if node in self._values else self._constants[node]


class _Sinking:
    """Copies nodes to read what contexts have."""

    def __init__(self, module: fx.GraphModule, expansion: Expansion, found: _Found) -> None:
        self._module = module
        self._graph = module.graph
        self._found = found
        by_name = {node.name: node for node in module.graph.nodes}
        self._row_context = by_name[_name_of(expansion.row_context)]
        self._num_contexts = by_name[_name_of(expansion.num_contexts)]
        self._places = {
            found.bags[one.bags]: node.args[-1]
            for node, one in found.seeds.items()
            if one.bags is not None and one.dims is not None
        }

    def run(self) -> None:
        """Change the graph."""
        nodes: list[fx.Node] = list(self._graph.nodes)
        read = {node for node in nodes if node.users}
        repeated = self._repeated(nodes)
        copies = self._copied(nodes, repeated)
        for node in nodes:
            if node in repeated:
                self._repeat(node, copies.get(node, node))
        for node in reversed(nodes):
            if node in read and not node.users and is_pure(self._module, node):
                self._graph.erase_node(node)
        self._graph.lint()

    def _copied(self, nodes: list[fx.Node], repeated: set[fx.Node]) -> dict[fx.Node, fx.Node]:
        """Return, by the node, what makes for contexts what it makes for rows."""
        values, copies = self._found.values, dict[fx.Node, fx.Node]()
        waiting, needed = [node for node in repeated if not self._is_number(values[node])], set[fx.Node]()
        while waiting:
            node = waiting.pop()
            if node in values and node not in needed:
                needed.add(node)
                if node not in self._found.seeds:
                    waiting += node.all_input_nodes
        for node in nodes:
            if node not in needed:
                continue
            if node in self._found.seeds:
                source = node.args[0]
                assert isinstance(source, fx.Node)
                copies[node] = source
            elif node in self._found.counts:
                copies[node] = self._num_contexts
            else:
                with self._graph.inserting_after(node):
                    copies[node] = self._graph.node_copy(node, lambda one: copies.get(one, one))
        return copies

    def _repeat(self, node: fx.Node, copied: fx.Node) -> None:
        """Let nodes of rows read what is made for contexts."""
        value = self._found.values[node]
        with self._graph.inserting_after(copied):
            if node in self._found.same:
                found = copied
            elif isinstance(value, NumRows):
                found = self._graph.call_method("size", (self._row_context, 0))
            else:
                space = value.value.space if isinstance(value, Strided) else value.space
                at = self._places[space.feature] if isinstance(space, IdsSpace) else self._row_context
                found = self._graph.call_method("index_select", (copied, 0, at))
        found.meta = dict(node.meta)
        node.replace_all_uses_with(found)

    def _repeated(self, nodes: list[fx.Node]) -> set[fx.Node]:
        """Return which nodes' results are repeated for rows, other than those that are already."""
        values = self._found.values
        repeated: set[fx.Node] = set()
        #: By what they view, the views that rows need: repeated, unless all of what they view is.
        views: dict[fx.Node, list[fx.Node]] = {}
        needed = {node for node in values if any(user not in values for user in node.users)}
        for node in reversed(nodes):
            if node not in values:
                continue
            if node in views and node not in needed:
                if sum(_width(values[one]) for one in views[node]) < _width(values[node]):
                    repeated |= {*views[node]}
                else:
                    needed.add(node)
            if node not in needed or node in self._found.seeds or node in self._found.counts:
                continue
            if node in self._found.same or self._is_number(values[node]):
                repeated.add(node)
            elif node in self._found.sized or not self._is_repeatable(values[node]):
                needed |= {one for one in node.all_input_nodes if one in values}
            elif self._is_view(node):
                needed |= {one for one in node.all_input_nodes[1:] if one in values}
                views.setdefault(node.all_input_nodes[0], []).append(node)
            else:
                repeated.add(node)
        return repeated

    def _is_view(self, node: fx.Node) -> bool:
        """Return whether a node sees numbers of another one that descends from contexts."""
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node) or source not in self._found.values or _name(node) not in _VIEWS:
            return False
        return not isinstance(self._found.values[source], (tuple, list)) or _name(source) in _VIEWS

    @staticmethod
    def _is_number(value: Any) -> bool:
        return isinstance(value, NumRows) and value == NumRows(Space.ROWS)

    def _is_repeatable(self, value: Any) -> bool:
        if isinstance(value, Strided):
            return value.axes[:1] == (None,) and self._is_repeatable(value.value)
        if not isinstance(value, Value):
            return False
        if isinstance(value.space, IdsSpace):
            return value.space.is_expanded and value.space.feature in self._places
        return value.space is Space.ROWS


def _name_of(traced: Any) -> str:
    name: str = traced.node.name
    return name


def _is_number_of_rows(node: fx.Node, row_contexts: set[str]) -> bool:
    of = node.args[0] if node.args else None
    return (
        node.op == "call_method"
        and node.target == "size"
        and node.args[1:] == (0,)
        and isinstance(of, fx.Node)
        and of.name in row_contexts
    )


def _is_float_dtype(one: Any) -> bool:
    return isinstance(one, torch.dtype) and one.is_floating_point


def _name(node: fx.Node) -> str:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.strip("_")


def _width(value: Any) -> int:
    """Return how many numbers of a row a value has; 0 if that is open."""
    if isinstance(value, (tuple, list)):
        return sum(map(_width, value))
    return (
        prod(size for size in value.shape if isinstance(size, int))
        if isinstance(value, (Value, Strided))
        else 0
    )
