"""Rewrites of a traced graph that keep its results, and its TorchScript. Callers of rewrites recompile the module."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from export.graph.tracing.source_location import Line
from export.graph.tracing.tracer import LINE
from recsys.errors import ExportError
from recsys.scripting import torchscript

_RELUS = (torch.relu, functional.relu)
# Layers that always return a new tensor.
_MAKING_LAYERS = (nn.Linear, nn.LayerNorm, nn.BatchNorm1d)
# Attributes of layers without annotations.
_FLOATS_OF_LAYERS: dict[type[nn.Module], set[str]] = {nn.MultiheadAttention: {"dropout"}}
_FLOATS = ("float", "Optional[float]")
# Methods of tensors that TorchScript does not have.
_CONVERSIONS = {"bool": torch.bool, "bfloat16": torch.bfloat16}
_OTHER_NAMES = {"ndimension": "dim", "nelement": "numel"}
# Types of a schema that take a whole number as it is.
_WHOLE = ("int", "number", "SymInt", "Optional[int]", "Optional[number]", "Optional[SymInt]", "Scalar", "t")
# Before the marks below what TorchScript refuses: the node's name.
_REFUSED = re.compile(r"^ *(\w+) = .*\n *~+ <--- HERE", re.MULTILINE)
_ALLOWED_NAMESPACES = ("aten", "fbgemm", "prim")


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


def spell_for_torchscript(module: fx.GraphModule) -> None:
    """Replace what Python takes and TorchScript does not, such as whole numbers for floats."""
    _floats_for_whole_numbers(module)
    _norms_of_vectors(module)
    _places_by_dimension(module)
    _copy_views_of_other_types(module)
    _conversions(module)


def _norms_of_vectors(module: fx.GraphModule) -> None:
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


def _places_by_dimension(module: fx.GraphModule) -> None:
    """Replace ``x.nonzero(as_tuple=True)``, which TorchScript does not have, by ``torch.where(x)``."""
    for node in module.graph.nodes:
        if node.target in ("nonzero", torch.nonzero) and node.kwargs.get("as_tuple"):
            node.op, node.target, node.kwargs = "call_function", torch.where, {}


def _copy_views_of_other_types(module: fx.GraphModule) -> None:
    """Replace ``x.view(torch.int32)`` by ``view_copy``: TorchScript's ``view`` takes the dtype for a size."""
    for node in module.graph.nodes:
        dtype = node.kwargs.get("dtype", node.args[-1] if node.args else None)
        if node.op == "call_method" and node.target == "view" and isinstance(dtype, torch.dtype):
            node.op, node.target = "call_function", torch.view_copy
            node.args, node.kwargs = node.args[:1], {"dtype": dtype}


def _conversions(module: fx.GraphModule) -> None:
    """Replace ``x.bool()`` and ``x.nelement()``, which TorchScript does not have, by ``x.to(dtype)`` and the like."""
    for node in module.graph.nodes:
        if node.op != "call_method":
            continue
        node.target = _OTHER_NAMES.get(node.target, node.target)
        if node.target in _CONVERSIONS:
            node.args, node.target = (*node.args, _CONVERSIONS[node.target]), "to"


def without_unused(module: fx.GraphModule) -> None:
    """Leave out what nothing reads, but for operators that check, or that write to what they are given."""
    for node in reversed(module.graph.nodes):
        if not node.users and is_pure(module, node):
            module.graph.erase_node(node)
    module.delete_all_unused_submodules()


def is_pure(module: nn.Module, node: fx.Node) -> bool:
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


def _floats_for_whole_numbers(module: fx.GraphModule) -> None:
    """Give functions, methods and layers floats where they take no whole numbers, such as ``nn.Dropout(0)``.

    An ``out=None`` is left out.
    """
    for node in module.graph.nodes:
        if node.kwargs.get("out", node) is None:
            node.kwargs = {name: value for name, value in node.kwargs.items() if name != "out"}
        if node.op == "call_module":
            _floats_of_layer(module.get_submodule(str(node.target)))
        elif node.op == "call_function" and inspect.isfunction(node.target):
            _floats_for_function(node)
        elif node.op in ("call_function", "call_method"):
            _floats_for_operator(node)


def _floats_of_layer(layer: nn.Module) -> None:
    if isinstance(layer, torch.jit.ScriptModule):
        return
    for part in layer.modules():
        for name in _taking_floats(type(part)) | _FLOATS_OF_LAYERS.get(type(part), set()):
            if type(part.__dict__.get(name)) is int:
                setattr(part, name, float(part.__dict__[name]))


def _floats_for_function(node: fx.Node) -> None:
    function: Any = node.target
    taken = _taking_floats(function)
    # Behind the last one there are only those of *args.
    names = [*inspect.signature(function).parameters][: len(node.args)]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    for name, value in given.items():
        if name in taken and type(value) is int:
            _set_float(node, name if name in node.kwargs else names.index(name), value)


def _taking_floats(of: Callable[..., Any]) -> set[str]:
    """Return the names of a function's parameters, or of a class's attributes, that are annotated as floats."""
    try:
        hints = typing.get_type_hints(of)
    except (NameError, TypeError, AttributeError):
        return set()
    return {name for name, hint in hints.items() if float in (hint, *typing.get_args(hint))}


def _floats_for_operator(node: fx.Node) -> None:
    """Give an operator of torch floats, unless one of its overloads takes the arguments as they are."""
    if all(type(value) is not int for value in (*node.args, *node.kwargs.values())):
        return
    found = [_whole_for_float(schema, node.args, node.kwargs) for schema in _schemas(node)]
    fitting = [one for one in found if one is not None]
    if fitting and all(fitting):
        for place in fitting[0]:
            value: Any = node.kwargs[place] if isinstance(place, str) else node.args[place]
            _set_float(node, place, value)


def _schemas(node: fx.Node) -> Sequence[Any]:
    is_method = node.op == "call_method"
    name = f"aten::{node.target}" if is_method else torch.jit._builtins._find_builtin(node.target) or ""
    return list(torch._C._jit_get_schemas_for_operator(name)) if name.startswith("aten::") else ()


def _whole_for_float(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int | str] | None:
    """Return which whole numbers an overload takes as floats alone; None if it does not take the arguments."""
    names = [argument.name for argument in schema.arguments]
    if len(args) > len(names) or not {*kwargs} <= {*names}:
        return None
    by_place: dict[int | str, Any] = dict(enumerate(args))
    by_place.update(kwargs)
    floats: list[int | str] = []
    for place, value in by_place.items():
        kind = str(schema.arguments[place if isinstance(place, int) else names.index(place)].type)
        if type(value) is int and kind in _FLOATS:
            floats.append(place)
        elif (type(value) is int and kind not in _WHOLE) or (
            type(value) is float and kind not in (*_FLOATS, *_WHOLE)
        ):
            return None
    return floats


def _set_float(node: fx.Node, place: int | str, value: int) -> None:
    if isinstance(place, str):
        node.update_kwarg(place, float(value))
    else:
        node.update_arg(place, float(value))


def scripted(module: fx.GraphModule, methods: Mapping[str, fx.GraphModule]) -> torch.jit.ScriptModule:
    """Script a graph.

    Args:
        module: The graph.
        methods: By name, the parts of it that become methods of their own.

    Raises:
        ExportError: TorchScript cannot follow the model, or the graph calls foreign operators.
    """
    script = compiled(module, methods)
    check_namespaces(torchscript.operators(script))
    return script


def compiled(module: fx.GraphModule, methods: Mapping[str, fx.GraphModule]) -> torch.jit.ScriptModule:
    """Script a graph that may call our own operators; like ``scripted`` otherwise.

    Raises:
        ExportError: TorchScript cannot follow the model.
    """
    try:
        return torchscript.script(module, methods)
    except (RuntimeError, torch.jit.frontend.FrontendError) as error:
        raise ExportError(f"model: cannot be scripted: {_refused(module, error)}") from error


def _refused(module: fx.GraphModule, error: Exception) -> str:
    """Return what TorchScript refused, and the line of the model's code that asks for it."""
    lines: dict[str, Line] = {node.name: node.meta[LINE] for node in module.graph.nodes if LINE in node.meta}
    named = [name for name in _REFUSED.findall(str(error)) if name in lines]
    said = " ".join(str(error).split(":\n  File")[0].split())
    if not named:
        return said or str(error)
    return f"{said}. At {lines[named[-1]]}"


def check_namespaces(operators: Iterable[str]) -> None:
    """Check that a graph calls no foreign operators.

    Args:
        operators: By ``namespace::name``.

    Raises:
        ExportError: It does.
    """
    foreign = sorted(name for name in operators if name.split("::")[0] not in _ALLOWED_NAMESPACES)
    if foreign:
        raise ExportError(f"model: the graph calls {foreign}, expected operators of aten and fbgemm only")
