"""Rewrites of a traced graph that make it faster and keep its results. Whoever calls them recompiles the module."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

_RELUS = (torch.relu, functional.relu)
# Layers that always return a new tensor.
_MAKING_LAYERS = (nn.Linear, nn.LayerNorm, nn.BatchNorm1d)


def relu_in_place(module: fx.GraphModule) -> None:
    """Let a ReLU overwrite the output of the preceding linear layer, if nothing else reads it.

    Saves a pass over memory and an allocation: 3 to 4 % of a DLRM's time (docs/develop/benchmarks.md).
    """
    for node in module.graph.nodes:
        source = node.args[0] if node.args else None
        if (
            _is_relu(module, node)
            and isinstance(source, fx.Node)
            and source.op == "call_module"
            and isinstance(module.get_submodule(str(source.target)), nn.Linear)
            and len(source.users) == 1
        ):
            node.op, node.target, node.args, node.kwargs = "call_function", torch.relu_, (source,), {}


def norms_of_vectors(module: fx.GraphModule) -> None:
    """Let ``x.norm(dim=1)`` be a function: TorchScript's method takes no dimension without ``p``, and not by name."""
    for node in module.graph.nodes:
        if node.op == "call_method" and node.target == "norm":
            given = {
                **dict(zip(("self", "p", "dim", "keepdim", "dtype"), node.args, strict=False)),
                **node.kwargs,
            }
            p = given.pop("p", None)
            if p in (None, "fro") or isinstance(p, int | float):
                node.op, node.target = "call_function", torch.linalg.vector_norm
                node.args = (given.pop("self"), 2.0 if p in (None, "fro") else float(p))
                node.kwargs = given


def copy_views_of_other_types(module: fx.GraphModule) -> None:
    """Replace ``x.view(torch.int32)`` by ``view_copy``: TorchScript's ``view`` takes the dtype for a size."""
    for node in module.graph.nodes:
        dtype = node.kwargs.get("dtype", node.args[-1] if node.args else None)
        if node.op == "call_method" and node.target == "view" and isinstance(dtype, torch.dtype):
            node.op, node.target = "call_function", torch.view_copy
            node.args, node.kwargs = node.args[:1], {"dtype": dtype}


def without_unused(module: fx.GraphModule) -> None:
    """Leave out what nothing reads, but for operators that check, or that write to what they are given."""
    for node in reversed(module.graph.nodes):
        if not node.users and is_pure(module, node):
            module.graph.erase_node(node)
    module.delete_all_unused_submodules()


def is_pure(module: fx.GraphModule, node: fx.Node) -> bool:
    """Return whether all that a node does is what it returns."""
    if node.op == "call_module":
        written = node.args[0] if getattr(module.get_submodule(str(node.target)), "inplace", False) else None
        # What a layer has just made for this one alone may be written to.
        return not isinstance(written, fx.Node) or (
            written.op == "call_module"
            and len(written.users) == 1
            and isinstance(module.get_submodule(str(written.target)), _MAKING_LAYERS)
        )
    if node.op == "get_attr":
        return True
    if isinstance(node.target, torch._ops.OpOverloadPacket):
        schemas = [getattr(node.target, name)._schema for name in node.target.overloads()]
        return all(schema.returns and not schema.is_mutable for schema in schemas)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name.startswith("__") or getattr(node.target, "__module__", "") == "_operator":
        # Python's operators that begin with an i write: iadd, __iand__.
        plain = name.strip("_")
        writes = plain == "setitem" or (plain.startswith("i") and plain not in ("is", "index", "invert"))
    else:
        writes = name.endswith("_") or name in ("setitem", "_assert", "_check")
    writes = writes or any(node.kwargs.get(key) not in (None, False) for key in ("out", "inplace"))
    return node.op in ("call_function", "call_method") and not writes


def _is_relu(module: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(module.get_submodule(str(node.target)), nn.ReLU)
    return (node.op == "call_function" and node.target in _RELUS) or (
        node.op == "call_method" and node.target == "relu"
    )


def part_shared_linears(module: fx.GraphModule) -> None:
    """Part linear layers from the batch norms behind them, where something else reads the layer too.

    ``torch.jit.freeze`` makes one layer of the two, and gives it to whatever else reads the first. A view of the same
    tensor between them, which costs nothing, keeps it from doing so.
    """
    for node in module.graph.nodes:
        source = node.args[0] if node.args else None
        if (
            _is_batch_norm(module, node)
            and isinstance(source, fx.Node)
            and _is_linear(module, source)
            and len(source.users) > 1
        ):
            with module.graph.inserting_before(node):
                view = module.graph.call_method("view_as", (source, source))
            node.replace_input_with(source, view)


def _is_batch_norm(module: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(module.get_submodule(str(node.target)), nn.modules.batchnorm._BatchNorm)
    return node.op == "call_function" and node.target in (functional.batch_norm, torch.batch_norm)


def _is_linear(module: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(module.get_submodule(str(node.target)), nn.Linear)
    return node.op == "call_function" and node.target is functional.linear


def flatten_cats(module: fx.GraphModule) -> None:
    """Merge a cat of columns into a following one, through a reshape, if nothing else reads it.

    ``cat([x, cat([a, b], 1).reshape(-1, F, D)], 1)`` becomes ``cat([x, a.reshape(-1, A, D), b.reshape(-1, F - A, D)],
    1)``: a DLRM's interaction takes the two parts of a ranking form without a copy of all pooled embeddings in between.
    """
    graph = module.graph
    for outer in [node for node in graph.nodes if _is_cat(node)]:
        sources: list[Any] = []
        for source in outer.args[0]:
            sources += _reshaped_parts(graph, source) or [source]
        replaced = dict.fromkeys(source for source in outer.args[0] if source not in sources)
        outer.args = (sources, *outer.args[1:])
        # Not eliminate_dead_code: it would also remove operators that only check and return nothing.
        for node in replaced:
            inner = node.args[0]
            graph.erase_node(node)
            graph.erase_node(inner)


def _reshaped_parts(graph: fx.Graph, node: fx.Node) -> list[fx.Node]:
    """Return the parts of a cat of narrowed columns, each reshaped as it is; an empty list for other nodes."""
    if node.op != "call_method" or node.target != "reshape" or len(node.args) != 4 or len(node.users) != 1:
        return []
    inner, rows, _, dim = node.args
    if rows != -1 or not isinstance(dim, int) or not isinstance(inner, fx.Node):
        return []
    if not _is_cat(inner) or len(inner.users) != 1:
        return []
    parts: Any = inner.args[0]
    if not all(part.target == "narrow" and part.args[1] == 1 and part.args[3] % dim == 0 for part in parts):
        return []
    with graph.inserting_before(node):
        return [graph.call_method("reshape", (part, -1, part.args[3] // dim, dim)) for part in parts]


def _is_cat(node: fx.Node) -> bool:
    """Return whether a node concatenates columns."""
    if node.op != "call_function" or node.target is not torch.cat or not node.args:
        return False
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    return bool(dim == 1) and isinstance(node.args[0], (list, tuple))
