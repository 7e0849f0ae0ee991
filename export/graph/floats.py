"""Arguments in a traced graph that Python takes and TorchScript does not: whole numbers for floats, ``out=None``."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

# Attributes of layers without annotations.
_FLOATS_OF_LAYERS: dict[type[nn.Module], set[str]] = {nn.MultiheadAttention: {"dropout"}}
_FLOATS = ("float", "Optional[float]")
# Types of a schema that take a whole number as it is.
_WHOLE = ("int", "number", "SymInt", "Optional[int]", "Optional[number]", "Optional[SymInt]", "Scalar", "t")


def floats_for_whole_numbers(module: fx.GraphModule) -> None:
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
