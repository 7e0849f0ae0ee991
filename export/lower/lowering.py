"""A model as a program: traced with its collections as leaves, evaluated, and planned.

Shape letters: B rows, Q contexts, F features.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn

from export.graph.graph import make_graph
from export.graph.passes import is_pure
from export.graph.prepared import PreparedModel
from export.graph.tree import exchanged

# The modules that say what becomes of the functions of torch.
from export.lower import arithmetic, attention, comparisons, layers, reductions, views  # noqa: F401
from export.lower.leaves import LEAVES, Leaves, leaves_of
from export.lower.planning import LookupInputs, Plan, plan_of
from export.lower.sequences import Cuts, Ids, Lengths, NumIds
from export.lower.values import (
    Called,
    Expand,
    Input,
    NotLoweredError,
    NumRows,
    Space,
    Value,
    Weight,
    apply,
    path_of,
    set_path,
)
from export.lower.views import RowContext
from export.lower.weights import lifted
from recsys.errors import ExportError

_ROOT = "model."


@dataclass(frozen=True, kw_only=True)
class Check:
    """The shape of an input: ``[n]``, or ``[n, width]`` where the width is not 0.

    n is ``of.size(0) // per_row * times``.

    Attributes:
        input: Its position.
        of: The position of the input that tells the number of rows.
    """

    input: int
    of: int
    per_row: int
    times: int
    width: int


@dataclass(frozen=True, kw_only=True)
class Gather:
    """Rows of one tensor by the numbers in another, by their places."""

    rows: int
    index: int


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """A form of a model as a program.

    Attributes:
        num_inputs: How many tensors it takes. They have the first places, and the results of each step the next.
        checks: The shapes of inputs.
        steps: In order.
        outputs: The place of each, by name.
        weights: The dense weights, by path.
    """

    num_inputs: int
    checks: list[Check]
    steps: list[Plan | Gather]
    outputs: dict[str, int]
    weights: dict[str, Tensor]


def lower(prepared: PreparedModel, *, is_ranking: bool) -> Lowered:
    """Lower a form of a model.

    Args:
        prepared: The model.
        is_ranking: Whether the ranking form.

    Raises:
        NotLoweredError: It does something that no step does.
    """
    if prepared.signature.by_request:
        raise NotLoweredError("its rows depend on each other")
    leaves = leaves_of(prepared, is_ranking=is_ranking)
    context = prepared.signature.context if is_ranking else ()
    try:
        graph = make_graph(
            exchanged(prepared.model, leaves.modules),
            prepared.binding,
            [torch.device("cpu")],
            torch.float32,
            context,
            is_scripted=False,
        )
    except ExportError as error:
        # What a leaf refuses is one of the causes.
        raise NotLoweredError(str(error)) from error
    inputs = _Inputs(prepared, leaves, is_ranking=is_ranking)
    baked = {f"{_ROOT}{name}" for name in prepared.model.state_dict()}
    evaluation = _Evaluation(graph.module, inputs, leaves, baked)
    outputs = evaluation.run()
    return _program(outputs, inputs, evaluation.weights)


class _Inputs:
    """The inputs of a graph: their places, and the values that they are."""

    def __init__(self, prepared: PreparedModel, leaves: Leaves, *, is_ranking: bool) -> None:
        signature = prepared.signature
        context = signature.context if is_ranking else ()
        self.values: dict[str, Any] = {}
        self.names: list[str] = []
        self._leaves = leaves
        for i, dense in enumerate(signature.dense):
            space = Space.CONTEXTS if dense.name in context else Space.ROWS
            self.names.append(f"dense_{i}")
            self.values[self.names[-1]] = Input(dims=(dense.width,), space=space, index=i)
        ids = ["lengths", "values", *(["weights"] if signature.is_weighted else [])]
        self.names += [f"context_{name}" for name in ids] if is_ranking else []
        self.names += [*ids, *(["row_context"] if is_ranking else [])]
        self.ids: dict[Space, LookupInputs] = {}
        for space, prefix in ((Space.CONTEXTS, "context_"), (Space.ROWS, "")):
            if f"{prefix}lengths" not in self.names:
                continue
            num_features = len(leaves.names[space])
            self.values[f"{prefix}lengths"] = Lengths(space, num_features)
            self.values[f"{prefix}values"] = Ids(space, num_features)
            self.ids[space] = LookupInputs(
                lengths=self.names.index(f"{prefix}lengths"),
                values=self.names.index(f"{prefix}values"),
                weights=self.names.index(f"{prefix}weights") if signature.is_weighted else None,
                num_features=num_features,
            )
        if is_ranking:
            self.values["row_context"] = RowContext()

    def checks(self, read: Iterable[Value]) -> list[Check]:
        """Return the checks of shapes that no plan makes.

        Args:
            read: The values that something else than a plan reads.
        """
        counted = {space: self._counted(space) for space in self.ids}
        found = []
        for space, ids in self.ids.items():
            of, per_row = counted[space]
            if ids.num_features and of != ids.lengths:
                found.append(
                    Check(input=ids.lengths, of=of, per_row=per_row, times=ids.num_features, width=0)
                )
        for value in dict.fromkeys(read):
            if isinstance(value, Input):
                of, per_row = counted[value.space]
                found.append(Check(input=value.index, of=of, per_row=per_row, times=1, width=value.width))
        return found

    def _counted(self, space: Space) -> tuple[int, int]:
        """Return the input that tells the rows of a space, and how many of its items belong to one."""
        if space is Space.ROWS and "row_context" in self.names:
            return self.names.index("row_context"), 1
        ids = self.ids[space]
        if ids.num_features:
            return ids.lengths, ids.num_features
        dense = [v.index for v in self.values.values() if isinstance(v, Input) and v.space is space]
        return dense[0], 1


class _Evaluation:
    """Runs a traced graph on values.

    Args:
        module: The graph.
        inputs: Its inputs.
        leaves: What its calls of collections look up.
        stored: The paths of all tensors that checkpoints hold.

    Attributes:
        weights: The dense weights of the graph, by path.
    """

    def __init__(
        self, module: fx.GraphModule, inputs: _Inputs, leaves: Leaves, stored: Iterable[str]
    ) -> None:
        self._module = module
        self._inputs = inputs
        self._leaves = leaves
        self._stored = frozenset(stored)
        self._results: dict[fx.Node, Any] = {}
        # What is known by several names has the first one, as in graphs.
        self.weights: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for path, tensor in self.weights.items():
            # Deltas hold no truth values.
            if tensor.is_floating_point() or (path in self._stored and tensor.dtype is torch.int64):
                set_path(tensor, path)

    def run(self) -> dict[str, Value]:
        """Return the outputs by name."""
        graph = self._module.graph
        (output,) = [node for node in graph.nodes if node.op == "output"]
        needed = self._needed(output)
        # By what they compute: the model's code may ask for the same several times, as each layer of one mask.
        first: dict[tuple[str, ...], fx.Node] = {}
        same: dict[fx.Node, fx.Node] = {}
        for node in graph.nodes:
            if node is output:
                break
            if node in needed:
                target = node.target if isinstance(node.target, str) else str(id(node.target))
                given = fx.node.map_arg((node.args, node.kwargs), lambda one: same.get(one, one))
                same[node] = first.setdefault((node.op, target, repr(given)), node)
                known = same[node] is not node
                self._results[node] = self._results[same[node]] if known else self._checked(node)
            elif not is_pure(self._module, node) and node.op != "placeholder":
                raise NotLoweredError(f"it calls {node.target} for its effect")
        outputs = {
            name: value.settled() if isinstance(value, Called) else value
            for name, value in self._taken(output.args[0]).items()
        }
        for name, value in outputs.items():
            if isinstance(value, Value) and value.dtype is not torch.float32:
                raise NotLoweredError(f"output {name!r} holds whole numbers")
            if not isinstance(value, Value) or len(value.dims) > 1 or value.space is not Space.ROWS:
                raise NotLoweredError(f"output {name!r} is no row of numbers")
        return outputs

    def _needed(self, output: fx.Node) -> set[fx.Node]:
        """Return the nodes that an output is made of, up to the collections."""
        needed: set[fx.Node] = set()
        open_nodes = list(output.all_input_nodes)
        while open_nodes:
            node = open_nodes.pop()
            if node not in needed:
                needed.add(node)
                open_nodes += [] if node.target in LEAVES else node.all_input_nodes
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
            return self._attribute(str(node.target))
        if node.target in LEAVES:
            return self._leaves.calls[str(node.args[-1])](self._space_of(node))
        if not is_pure(self._module, node) and not _is_fused_relu(self._module, node):
            raise NotLoweredError(f"it calls {node.target} for its effect")
        args, kwargs = self._taken(node.args), self._taken(dict(node.kwargs))
        is_of_weights = not any(map(_is_value, [*_flat(args), *_flat(kwargs)]))
        if node.op == "call_module":
            layer = self._module.get_submodule(str(node.target))
            if isinstance(layer, nn.Embedding):
                return apply("embedding", args[0], lifted(layer.weight, Space.ROWS))
            if is_of_weights:
                raise NotLoweredError("it computes with its dense weights before a batch is there")
            return layer(*args, **kwargs)
        if node.op == "call_method" and isinstance(args[0], Tensor) and not is_of_weights:
            # Tensors refuse what are no tensors.
            found = apply(str(node.target), lifted(args[0], Space.ROWS), *args[1:], **kwargs)
        elif node.op == "call_method":
            found = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            found = self._called(node.target, args, kwargs)
        if not is_of_weights or not isinstance(found, Tensor):
            return found
        weights = [one for one in [*_flat(args), *_flat(kwargs)] if path_of(one) is not None]
        if not weights or self._is_whole(found, weights):
            return found
        # Each row computes it of the weights: deltas may change them.
        args, kwargs = (
            fx.node.map_aggregate(given, lambda one: lifted(one, Space.ROWS) if path_of(one) else one)
            for given in (args, kwargs)
        )
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        return apply(name, *args, **kwargs)

    def _called(self, target: Any, args: Any, kwargs: Any) -> Any:
        # Functions of torch ask their arguments, Value.__torch_function__; those that make tensors have none to ask.
        makes = getattr(target, "__name__", "") in ("zeros", "ones", "full")
        if makes and any(isinstance(one, NumRows) for one in _flat(args)):
            return apply(target.__name__, *args, **kwargs)
        is_of_torch = isinstance(target, BuiltinFunctionType) and target.__module__ not in (
            "_operator",
            "builtins",
        )
        is_of_values = any(isinstance(one, Called) for one in [*_flat(args), *_flat(kwargs)])
        # Python compares values as objects.
        is_equality = target in (operator.eq, operator.ne)
        if isinstance(target, torch._ops.OpOverloadPacket) or ((is_of_torch or is_equality) and is_of_values):
            return apply(target.__name__, *args, **kwargs)
        return target(*args, **kwargs)

    def _attribute(self, path: str) -> Any:
        found: Any = self._module
        for name in path.split("."):
            found = getattr(found, name)
        return found

    @staticmethod
    def _is_whole(found: Tensor, weights: Sequence[Any]) -> bool:
        """Return whether a tensor is a view of a whole dense weight, whose path it then has too."""
        (weight, *others) = weights
        is_view = (
            not others
            and found.data_ptr() == weight.data_ptr()
            and found.numel() == weight.numel()
            and found.is_contiguous()
        )
        if is_view and found is not weight:
            set_path(found, path_of(weight))
        return is_view

    def _space_of(self, node: fx.Node) -> Space:
        """Return the space whose lengths a collection is called with."""
        seen, open_nodes = set[fx.Node](), list(node.all_input_nodes)
        while open_nodes:
            one = open_nodes.pop()
            if one not in seen:
                seen.add(one)
                open_nodes += one.all_input_nodes
        names = {str(one.target) for one in seen if one.op == "placeholder"}
        return Space.ROWS if {"lengths", "values"} & names else Space.CONTEXTS

    def _taken(self, argument: Any) -> Any:
        return fx.node.map_arg(argument, lambda node: self._results[node])


def _is_value(one: Any) -> bool:
    return isinstance(one, (Called, NumRows, NumIds, RowContext, Cuts))


def _flat(argument: Any) -> list[Any]:
    if isinstance(argument, Mapping):
        argument = list(argument.values())
    if isinstance(argument, (list, tuple)):
        return [one for part in argument for one in _flat(part)]
    return [argument]


def _is_fused_relu(module: fx.GraphModule, node: fx.Node) -> bool:
    """Return whether a node overwrites what a layer has made for it alone."""
    source = node.args[0] if node.args else None
    return (
        node.target is torch.relu_
        and isinstance(source, fx.Node)
        and source.op == "call_module"
        and isinstance(module.get_submodule(str(source.target)), nn.Linear)
        and len(source.users) == 1
    )


def _program(outputs: Mapping[str, Value], inputs: _Inputs, weights: Mapping[str, Tensor]) -> Lowered:
    expanded = [value for value in _in_order(outputs.values()) if isinstance(value, Expand)]
    places: dict[Value, int] = {
        value: value.index for value in inputs.values.values() if isinstance(value, Input)
    }
    num_places = len(inputs.names)
    steps: list[Plan | Gather] = []

    def plan(space: Space, wanted: Sequence[Value]) -> None:
        nonlocal num_places
        missing = [value for value in dict.fromkeys(wanted) if value not in places]
        if not missing:
            return
        values = [value for value in _in_order(missing) if value.space is space and value not in places]
        steps.append(plan_of(values, missing, places, inputs.ids.get(space)))
        for value in missing:
            places[value] = num_places
            num_places += 1

    plan(Space.CONTEXTS, [value.source for value in expanded])
    for value in expanded:
        steps.append(Gather(rows=places[value.source], index=inputs.names.index("row_context")))
        places[value] = num_places
        num_places += 1
    plan(Space.ROWS, list(outputs.values()))
    if not any(isinstance(step, Plan) for step in steps):
        raise NotLoweredError("it computes nothing")
    read = {
        one.path
        for step in steps
        if isinstance(step, Plan)
        for one in step.constants
        if isinstance(one, Weight)
    }
    return Lowered(
        num_inputs=len(inputs.names),
        checks=inputs.checks([*(value.source for value in expanded), *outputs.values()]),
        steps=steps,
        outputs={name: places[value] for name, value in outputs.items()},
        weights={
            path: one
            for path, one in weights.items()
            if one.numel() and (one.is_floating_point() or path in read)
        },
    )


def _in_order(values: Iterable[Value]) -> list[Value]:
    """Return the values and all that they are computed of, in the order of the model's code."""
    found: set[Value] = set()
    open_values = list(values)
    while open_values:
        value = open_values.pop()
        if value not in found:
            found.add(value)
            open_values += value.sources
    return sorted(found, key=lambda value: value.number)
