"""A model as a program: traced with its collections as leaves, evaluated, and planned.

Shape letters: B rows, Q contexts, F features.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from export.graph.graph import finished, traced_model
from export.graph.modules import replace_modules
from export.graph.passes import is_pure
from export.graph.prepared import PreparedModel
from export.graph.ranking import Expansion
from export.lower.bags import Length, Rows, ids_space
from export.lower.effects import Group, calls_code, may_write, separate_writes
from export.lower.leaves import LEAVES, Leaves, computed_rows_looked_up, leaves_of, rows_expanded
from export.lower.operators.sequences import Ids
from export.lower.regions import Outside, Regions, run_on_samples
from export.lower.scheduling import GraphInputs, Lowered, Scheduling
from export.lower.spaces.contexts import Contexts, NodeFunctions
from export.lower.spaces.report import Journal, report_of
from export.lower.values import (
    Called,
    NotLoweredError,
    Space,
    Value,
    next_number,
    writes_refused,
)
from recsys.errors import ExportError
from recsys.ops import fbgemm

_ROOT = "model."


def lower(prepared: PreparedModel, *, is_ranking: bool) -> Lowered:
    """Lower a form of a model.

    Args:
        prepared: The model.
        is_ranking: Whether the ranking form.

    Raises:
        NotLoweredError: It does something that no step does.
    """
    leaves = leaves_of(prepared, is_ranking=is_ranking)
    context = prepared.signature.context if is_ranking else ()
    try:
        traced = traced_model(
            replace_modules(prepared.model, leaves.modules),
            prepared.input_mapping,
            [torch.device("cpu")],
            torch.float32,
            context,
        )
        graph = finished(traced, is_scripted=False)
    except ExportError as error:
        # What a leaf refuses is one of the causes.
        raise NotLoweredError(str(error)) from error
    inputs = GraphInputs(prepared, leaves, is_ranking=is_ranking)
    baked = {f"{_ROOT}{name}" for name in prepared.model.state_dict()}
    groups: list[Group] = []
    if any(may_write(graph.module, node) for node in graph.module.graph.nodes):
        groups = separate_writes(
            graph.module, lambda one: run_on_samples(one, prepared, is_ranking=is_ranking)
        )
    evaluation = _Evaluation(graph.module, inputs, leaves, baked)
    if traced.root.expansion is not None:
        evaluation.expanded_ids = _expanded_ids(traced.root.expansion, prepared, leaves)
    evaluation.regions = Regions(graph.module, evaluation.results, prepared, groups, is_ranking=is_ranking)
    outputs = evaluation.run()
    mappings = prepared.managed.slots_paths.values()
    program = Scheduling(outputs, inputs, evaluation.regions, evaluation.weights, mappings).run()
    if not is_ranking:
        return program
    return replace(program, spaces=report_of(program.steps, evaluation.journal))


def _expanded_ids(expansion: Expansion, prepared: PreparedModel, leaves: Leaves) -> dict[str, Ids]:
    """Return by node the IDs of contexts that a model reads for the rows that share them; equal ones once."""
    names = leaves.names[Space.CONTEXTS]
    found: dict[tuple[str, str], Ids] = {}
    by_node = {}
    for node, one in expansion.expanded.items():
        if one.bags is not None and one.dims == ():
            feature = names.index(prepared.input_mapping.wire_name(*one.bags))
            ids = Ids(Space.CONTEXTS, len(names), feature, is_expanded=True)
            by_node[node] = found.setdefault(one.bags, ids)
    return by_node


class _Evaluation:
    """Runs a traced graph on values.

    Args:
        module: The graph.
        inputs: Its inputs.
        leaves: What its calls of collections look up.
        stored: The paths of all tensors that checkpoints hold.

    Attributes:
        weights: The dense weights of the graph, by path.
        journal: What it notes.
        expanded_ids: By node, the IDs of contexts for the rows that share them.
        results: What each node was evaluated to.
        regions: What is computed outside of steps.
    """

    regions: Regions

    def __init__(
        self, module: fx.GraphModule, inputs: GraphInputs, leaves: Leaves, stored: Iterable[str]
    ) -> None:
        self._module = module
        self._inputs = inputs
        self._leaves = leaves
        self._functions = NodeFunctions(module, stored)
        self.weights = self._functions.weights
        self.results: dict[fx.Node, Any] = {}
        self.expanded_ids: dict[str, Ids] = {}
        self.journal = Journal()
        self._contexts = Contexts(self.journal)

    def run(self) -> dict[str, Value | Outside]:
        """Return the outputs by name."""
        graph = self._module.graph
        (output,) = [node for node in graph.nodes if node.op == "output"]
        needed = self._needed(output)
        for node in graph.nodes:
            if node not in needed and not is_pure(self._module, node) and node not in self.regions.groups:
                if node.op in ("placeholder", "output"):
                    continue
                # It writes to nothing: it only raises an error, or not.
                self.regions.add_check(node)
                if node.target is not fbgemm.bounds_check_indices:
                    needed |= self._needed(node)
        outputs: Any = output.args[0]
        with graph.inserting_before(output):
            # What torch returns of values that are no rows.
            copies = {name: graph.call_method("clone", (node,)) for name, node in outputs.items()}
        # By what they compute: the model's code may ask for the same several times, as each layer of one mask.
        first: dict[tuple[str, ...], fx.Node] = {}
        same: dict[fx.Node, fx.Node] = {}
        for node in graph.nodes:
            if node is output:
                break
            if node in needed:
                target = node.target if isinstance(node.target, str) else str(id(node.target))
                given = fx.node.map_arg((node.args, node.kwargs), lambda one: same.get(one, one))
                # What is written to may be something else each time.
                is_alone = node in self.regions.groups
                same[node] = node if is_alone else first.setdefault((node.op, target, repr(given)), node)
                self._evaluate(node, same[node])
        outputs = output.args[0]
        return {name: self._output(name, node, copies[name]) for name, node in outputs.items()}

    def _evaluate(self, node: fx.Node, known: fx.Node) -> None:
        """Evaluate a node, or let ``known``, which computes the same, stand for it."""
        if known is node:
            self.journal.begun.append((next_number(), node))
            self.results[node] = self._result_of(node)
        elif not self._is_overwritten(node) and not self._is_overwritten(known):
            node.replace_all_uses_with(known)
        else:
            # Values are not written to in place, but what torch computes is.
            found = self.results[known]
            self.results[node] = self._result_of(node) if isinstance(found, Outside) else found

    def _is_overwritten(self, node: fx.Node) -> bool:
        """Return whether what a node makes is written to in place."""
        for user in node.users:
            layer = self._module.get_submodule(str(user.target)) if user.op == "call_module" else None
            if getattr(layer, "inplace", False) or not is_pure(self._module, user):
                return True
        return False

    def _output(self, name: str, node: fx.Node, copy: fx.Node) -> Value | Outside:
        found = self.results[node]
        if isinstance(found, Outside):
            return found
        try:
            value = found.settled() if isinstance(found, Called) else found
        except NotLoweredError as error:
            raise error.at(node) from error
        if (
            isinstance(value, Value)
            and value.space is Space.ROWS
            and value.dtype is torch.float32
            and len(value.dims) <= 1
        ):
            return value
        # Steps return rows of float32.
        self.results[copy] = outside = Outside(node=copy, why=f"output {name!r} is no row of float32")
        return outside

    def _result_of(self, node: fx.Node) -> Any:
        """Return what steps compute, or that torch does."""
        if node in self.regions.groups:
            return Outside(node=node, why="it writes to tensors that others read")
        try:
            with writes_refused(calls_code(node)):
                return self._checked(node)
        except NotLoweredError as error:
            placed = error.at(node)
            if node.op == "placeholder" or node.target in LEAVES:
                raise placed from error
            self._contexts.note_outside(
                node, [self.results.get(one) for one in node.all_input_nodes], str(error)
            )
            return Outside(node=node, why=str(placed))

    def _needed(self, output: fx.Node) -> set[fx.Node]:
        """Return the nodes that an output is made of, up to the collections."""
        needed: set[fx.Node] = set()
        open_nodes = list(output.all_input_nodes)
        while open_nodes:
            node = open_nodes.pop()
            if node not in needed:
                needed.add(node)
                open_nodes += self.regions.groups.get(node, ())
                if node.target is computed_rows_looked_up:
                    open_nodes += node.all_input_nodes[:1]
                is_leaf = node.target in LEAVES or node.name in self.expanded_ids
                open_nodes += [] if is_leaf else node.all_input_nodes
        return needed

    def _checked(self, node: fx.Node) -> Any:
        try:
            return self._run(node)
        except NotLoweredError:
            raise
        except Exception as error:  # torch's layers can raise anything for what are no tensors
            text = str(error).splitlines()[0] if str(error) else ""
            raise NotLoweredError(f"{node.target}: {type(error).__name__}: {text}"[:200]) from error

    def _run(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._inputs.values.get(str(node.target))
        if node.op == "get_attr":
            return self._functions.attribute(str(node.target))
        if node.target is computed_rows_looked_up:
            return self._computed_rows(node)
        if node.target in LEAVES:
            return self._leaves.calls[str(node.args[-1])](node, self._space_of(node))
        if node.target is rows_expanded:
            rows = self.results[node.args[0]] if isinstance(node.args[0], fx.Node) else None
            if not isinstance(rows, Rows):
                raise NotLoweredError("it expands what are no rows of IDs")
            return self._contexts.expanded_rows(rows)
        if node.name in self.expanded_ids:
            return self.expanded_ids[node.name]
        args, kwargs = self._taken(node.args), self._taken(dict(node.kwargs))
        return self._contexts.apply(node, lambda *given: self._functions.made(node, *given), args, kwargs)

    def _computed_rows(self, node: fx.Node) -> Value:
        """Return the rows of IDs that the model computes: in the bags of the request, or side by side."""
        assert isinstance(node.args[0], fx.Node)
        lengths = self.results[node.args[0]]
        of = lengths.settled() if isinstance(lengths, Called) else None
        rows = self._leaves.calls[str(node.args[-1])](node, self._space_of(node))
        assert isinstance(rows, Rows)
        if not isinstance(of, Length):
            assert rows.flat is not None
            return rows.flat
        return replace(rows, space=ids_space(of.space, of.feature, False))

    def _space_of(self, node: fx.Node) -> Space:
        """Return the space of the bags that a collection is called with; contexts repeated for rows are rows."""
        seen, open_nodes = set[fx.Node](), list(node.all_input_nodes)
        while open_nodes:
            one = open_nodes.pop()
            if one not in seen:
                seen.add(one)
                open_nodes += one.all_input_nodes
        names = {str(one.target) for one in seen if one.op == "placeholder"}
        return Space.ROWS if {"lengths", "values", "row_context"} & names else Space.CONTEXTS

    def _taken(self, argument: Any) -> Any:
        def taken(node: fx.Node) -> Any:
            found = self.results[node]
            return self.regions.value_of(found) if isinstance(found, Outside) else found

        return fx.node.map_arg(argument, taken)
