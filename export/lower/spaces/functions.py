"""What the functions of a traced graph's nodes make of values.

Shape letters: B rows, Q contexts.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn

from export.lower.operators.sequences import Cuts, NumIds
from export.lower.operators.views import RowContext
from export.lower.strided import lifted
from export.lower.values import Called, NotLoweredError, NumRows, Space, apply, path_of, set_path
from recsys.models.history import recent_rows

# Methods that return numbers of Python.
_READS_NUMBERS = ("item", "tolist")


class NodeFunctions:
    """Calls what a graph's nodes call, with values.

    Args:
        module: The graph.
        stored: The paths of all tensors that checkpoints hold.

    Attributes:
        weights: The dense weights of the graph, by path.
    """

    def __init__(self, module: fx.GraphModule, stored: Iterable[str]) -> None:
        self._module = module
        kept = frozenset(stored)
        # What is known by several names has the first one, as in graphs.
        self.weights: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for path, tensor in self.weights.items():
            # Deltas hold no truth values.
            if tensor.is_floating_point() or (path in kept and tensor.dtype is torch.int64):
                set_path(tensor, path)

    def made(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """Return what a node's function makes of arguments."""
        is_of_weights = not any(map(is_value, [*flat(args), *flat(kwargs)]))
        if node.op == "call_module":
            layer = self._module.get_submodule(str(node.target))
            if isinstance(layer, nn.Embedding):
                return apply("embedding", args[0], lifted(layer.weight, Space.ROWS))
            if is_of_weights:
                args, kwargs = fx.node.map_aggregate((args, kwargs), lambda one: lifted(one, Space.ROWS))
            return layer(*args, **kwargs)
        if node.op == "call_method" and isinstance(args[0], Tensor) and not is_of_weights:
            # Tensors refuse what are no tensors.
            found = apply(str(node.target), lifted(args[0], Space.ROWS), *args[1:], **kwargs)
        elif node.op == "call_method":
            found = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            found = _called(node.target, args, kwargs)
        weights = [one for one in [*flat(args), *flat(kwargs)] if path_of(one) is not None]
        if not is_of_weights or not weights:
            return found
        if node.target in _READS_NUMBERS:
            raise NotLoweredError("it reads the numbers of a dense weight")
        made = [one for one in flat(found) if isinstance(one, Tensor)]
        if not made or (isinstance(found, Tensor) and _is_whole(found, weights)):
            return found
        # It is computed of the weights when a program gets them: deltas may change them.
        args, kwargs = (
            fx.node.map_aggregate(given, lambda one: lifted(one, Space.ROWS) if path_of(one) else one)
            for given in (args, kwargs)
        )
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        return apply(name, *args, **kwargs)

    def attribute(self, path: str) -> Any:
        """Return an attribute of the graph's module."""
        found: Any = self._module
        for name in path.split("."):
            found = getattr(found, name)
        return found


def _called(target: Any, args: Any, kwargs: Any) -> Any:
    # Functions of torch ask their arguments, Value.__torch_function__; those that make tensors have none to ask.
    makes = getattr(target, "__name__", "") in ("zeros", "ones", "full")
    if makes and any(isinstance(one, NumRows) for one in flat(args)):
        return apply(target.__name__, *args, **kwargs)
    is_of_torch = isinstance(target, BuiltinFunctionType) and target.__module__ not in (
        "_operator",
        "builtins",
    )
    is_of_values = any(isinstance(one, Called) for one in [*flat(args), *flat(kwargs)])
    # Python compares values as objects.
    is_equality = target in (operator.eq, operator.ne)
    is_known = is_of_torch or is_equality or target is recent_rows
    if isinstance(target, torch._ops.OpOverloadPacket) or (is_known and is_of_values):
        return apply(target.__name__, *args, **kwargs)
    return target(*args, **kwargs)


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


def is_value(one: Any) -> bool:
    """Return whether something stands for what each batch has of its own."""
    return isinstance(one, (Called, NumRows, NumIds, RowContext, Cuts))


def flat(argument: Any) -> list[Any]:
    """Return what an argument holds in containers."""
    if isinstance(argument, Mapping):
        argument = list(argument.values())
    if isinstance(argument, (list, tuple)):
        return [one for part in argument for one in flat(part)]
    return [argument]
