"""A traced model as an ExportedProgram, whose rows are an input.

Shape letters: B batch, Q contexts, F features, N number of IDs, R bytes of the rows.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.fx.experimental._config
from torch import Tensor, fx
from torch.export import Dim, ExportedProgram

from export.graph.inputs.computed import checked_ids
from export.graph.passes import check_namespaces
from recsys.artifact.exported import quiet
from recsys.artifact.graphs import set_attribute
from recsys.errors import ExportError
from recsys.inputs.signature import Signature

_shape_config: Any = torch.fx.experimental._config
# Sizes of the example that is traced: different ones, none of them 0 or 1.
_NUM_ROWS, _NUM_CONTEXTS, _NUM_IDS = 5, 3, 7
_MAX_ROWS = 1 << 30
_MAX_IDS = 1 << 40
# Operations whose result may not lie in order in memory.
_VIEWS = {"narrow", "transpose", "permute", "t", "select", "unbind", "split", "chunk", "expand", "swapaxes"}
_RESHAPES = ("reshape", "flatten", torch.reshape, torch.flatten)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The inputs of a program, in order.

    Attributes:
        names: As ``forward`` calls them.
        examples: One tensor for each.
        dims: For each the dynamic dimensions, by position.
    """

    names: list[str]
    examples: list[Tensor]
    dims: list[dict[int, Any]]


def exported_program(
    module: fx.GraphModule, rows: Sequence[str], signature: Signature, num_bytes: int, *, is_ranking: bool
) -> ExportedProgram:
    """Export a traced model whose devices are all the CPU.

    Args:
        module: The traced model; it is not changed.
        rows: The paths of its buffers for rows.
        signature: Inputs and outputs.
        num_bytes: Of the rows.
        is_ranking: Whether it is the ranking form.

    Returns:
        A program that takes the inputs of the module, but lengths as ``[F, B]``, and the rows ``[R]`` uint8 behind
        them. It returns the outputs as a tuple in the order of the signature.

    Raises:
        ExportError: torch.export does not support the model, or the graph calls foreign operators.
    """
    inputs = _inputs(signature, num_bytes, is_ranking=is_ranking)
    # What tells torch that a tensor lies in order costs a copy, so it is done only where it is needed.
    for clones in (_VIEWS, None):
        prepared = copy.deepcopy(module)
        _prepare(prepared, rows, signature, inputs, clones)
        try:
            exported = _exported(prepared, inputs)
            break
        except (RuntimeError, ValueError, AssertionError, NotImplementedError) as error:
            failed = error
    else:
        raise ExportError(
            f"model: torch.export does not support it: {type(failed).__name__}: {str(failed).splitlines()[0][:500]}; "
            "export it with --format torchscript"
        ) from failed
    targets = [node.target for node in exported.graph.nodes if node.op == "call_function"]
    check_namespaces({target.name() for target in targets if isinstance(target, torch._ops.OpOverload)})
    return exported


def save_exported(exported: ExportedProgram, file: Path) -> None:
    """Write a program for ``torch.export.load``, without the inputs that it was traced with.

    Raises:
        OSError: The file cannot be written.
    """
    examples = exported._example_inputs
    # The last of them has the size of the rows.
    exported._example_inputs = None
    try:
        with quiet(), file.open("wb") as opened:
            torch.export.save(exported, opened)
    finally:
        exported._example_inputs = examples


def _exported(module: fx.GraphModule, inputs: Inputs) -> ExportedProgram:
    # Otherwise batches of no rows and of one row are refused.
    with _shape_config.patch(backed_size_oblivious=True), torch.no_grad():
        return torch.export.export(module, tuple(inputs.examples), dynamic_shapes=tuple(inputs.dims))


def _inputs(signature: Signature, num_bytes: int, *, is_ranking: bool) -> Inputs:
    num_rows, num_contexts = Dim("B", min=0, max=_MAX_ROWS), Dim("Q", min=0, max=_MAX_ROWS)
    inputs = Inputs(names=[], examples=[], dims=[])

    def add(name: str, example: Tensor, dims: dict[int, Any]) -> None:
        inputs.names.append(name)
        inputs.examples.append(example)
        inputs.dims.append(dims)

    for i, dense in enumerate(signature.dense):
        of_context = is_ranking and dense.name in signature.context
        size, dim = (_NUM_CONTEXTS, num_contexts) if of_context else (_NUM_ROWS, num_rows)
        add(f"dense_{i}", torch.zeros(size, dense.width), {0: dim})

    def add_ids(prefix: str, num_features: int, size: int, dim: Any) -> None:
        num_ids = Dim(f"{prefix}N", min=0, max=_MAX_IDS)
        lengths = torch.zeros(num_features, size, dtype=torch.int64)
        lengths[:1, 0] = _NUM_IDS
        # No feature, no ID: but the number is left open like any other.
        add(f"{prefix}lengths", lengths, {1: dim})
        add(f"{prefix}values", torch.zeros(_NUM_IDS, dtype=torch.int64), {0: num_ids})
        if signature.is_weighted:
            add(f"{prefix}weights", torch.zeros(_NUM_IDS), {0: num_ids})

    if is_ranking:
        add_ids("context_", len(signature.context_sparse), _NUM_CONTEXTS, num_contexts)
        add_ids("", len(signature.row_sparse), _NUM_ROWS, num_rows)
        add("row_context", torch.zeros(_NUM_ROWS, dtype=torch.int64), {0: num_rows})
    else:
        add_ids("", len(signature.sparse), _NUM_ROWS, num_rows)
    # Not read while it is traced, and not kept.
    add("rows", torch.empty(num_bytes, dtype=torch.uint8), {})
    return inputs


def _prepare(
    module: fx.GraphModule, rows: Sequence[str], signature: Signature, inputs: Inputs, clones: set[str] | None
) -> None:
    graph = module.graph
    _put_in_order(module)
    _trust_checks(graph)
    _take_rows(graph, rows)
    given = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    assert list(given) == inputs.names, (list(given), inputs.names)
    _flatten_lengths(graph, given)
    _state_sizes(graph, given, inputs)
    _clone_before_reshapes(graph, clones)
    _return_tuple(graph, signature)
    graph.lint()
    for path in rows:
        holder, _, name = path.rpartition(".")
        delattr(module.get_submodule(holder), name)
    module.recompile()


def _put_in_order(module: fx.GraphModule) -> None:
    """Copy constants that are views, such as a transposed buffer: torch warns of them when it saves the program."""
    for path, tensor in list(module.named_buffers()):
        if not tensor.is_contiguous():
            set_attribute(module, path, tensor.contiguous())


def _trust_checks(graph: fx.Graph) -> None:
    """Leave out the checks that name what is wrong: they branch, and the lookups check the same IDs."""
    for node in [node for node in graph.nodes if node.target is checked_ids]:
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


def _take_rows(graph: fx.Graph, rows: Sequence[str]) -> None:
    """Let all lookups read the last input."""
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    with graph.inserting_after(last):
        taken = graph.placeholder("rows")
    for node in [node for node in graph.nodes if node.op == "get_attr" and node.target in rows]:
        node.replace_all_uses_with(taken)
        graph.erase_node(node)


def _flatten_lengths(graph: fx.Graph, given: Mapping[str, fx.Node]) -> None:
    """Take lengths as ``[F, B]``: their number then needs no division, which shapes could not be told from."""
    for name in ("context_lengths", "lengths"):
        if name in given:
            node = given[name]
            with graph.inserting_before(_first_step(graph)):
                flat = graph.call_method("flatten", (node,))
            node.replace_all_uses_with(flat)
            flat.args = (node,)


def _state_sizes(graph: fx.Graph, given: Mapping[str, fx.Node], inputs: Inputs) -> None:
    """State which inputs have the same number of rows, contexts or IDs."""
    first: dict[str, fx.Node] = {}
    with graph.inserting_before(_first_step(graph)):
        # Lengths before dense inputs: features are what most sizes are made of.
        for name, dims in zip(reversed(inputs.names), reversed(inputs.dims), strict=True):
            for position, dim in dims.items():
                size = graph.call_method("size", (given[name], position))
                if dim.__name__ in first:
                    same = graph.call_function(operator.eq, (size, first[dim.__name__]))
                    graph.call_function(torch._check, (same,))
                else:
                    first[dim.__name__] = size


def _first_step(graph: fx.Graph) -> fx.Node:
    nodes: Iterable[fx.Node] = graph.nodes
    return next(node for node in nodes if node.op != "placeholder")


def _clone_before_reshapes(graph: fx.Graph, clones: set[str] | None) -> None:
    """Put tensors in order before they are reshaped, else torch asks whether the batch has one row.

    Args:
        graph: The graph.
        clones: After which operations; None for all.
    """
    for node in [n for n in graph.nodes if n.target in _RESHAPES]:
        source = node.args[0]
        if source.op == "placeholder" or (clones is not None and not _is_view(source, clones)):
            continue
        with graph.inserting_before(node):
            copied = graph.call_method("clone", (source,), {"memory_format": torch.contiguous_format})
        node.args = (copied, *node.args[1:])


def _is_view(node: fx.Node, views: set[str]) -> bool:
    if node.op == "call_function" and node.target is operator.getitem:
        source, index = node.args
        # A slice of a tensor, or a part of what an operation returned.
        return not isinstance(index, (int, str)) or (isinstance(source, fx.Node) and _is_view(source, views))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name in views


def _return_tuple(graph: fx.Graph, signature: Signature) -> None:
    output = next(node for node in graph.nodes if node.op == "output")
    named: Any = output.args[0]
    output.args = (tuple(named[wanted.name] for wanted in signature.outputs),)
