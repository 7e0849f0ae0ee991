"""What rows of one context share is computed once: operators run on contexts before their result is expanded.

Shape letters: B rows, Q contexts, N number of IDs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn

from export.lower.bags import IdsSpace, Rows, ids_space
from export.lower.formed import Operand
from export.lower.operators.sequences import Cuts, Ids, NumIds
from export.lower.operators.views import RowContext
from export.lower.regions import Outside
from export.lower.spaces.report import Journal
from export.lower.strided import lifted
from export.lower.values import (
    Called,
    Expand,
    NotLoweredError,
    NumRows,
    Part,
    Space,
    Value,
    Weight,
    apply,
    path_of,
    set_path,
)
from recsys.models.history import recent_rows


class Contexts:
    """Applies operators to contexts where all that they read is expanded from contexts, or the same for all rows.

    Args:
        journal: Where is noted what does not run on contexts.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._outside: set[fx.Node] = set()
        self._expanded: dict[Value, Value] = {}
        #: By what is there for each ID of expanded contexts, the same of the contexts.
        self._of_contexts: dict[Value, Value] = {}
        #: By IDs of contexts, the same expanded, and the other way round.
        self._other_ids: dict[Ids, Ids] = {}
        self._constants: dict[Value, bool] = {}
        self._in_spaces: dict[tuple[Value, Space], Value] = {}

    def expanded_rows(self, rows: Rows) -> Rows:
        """Return the rows of the IDs of contexts, for the rows that share them."""
        found = rows.expanded()
        self._expanded[rows], self._of_contexts[found] = found, rows
        return found

    def _ids(self, ids: Ids, is_expanded: bool) -> Ids:
        """Return IDs of contexts, as they are or for the rows that share them; each once."""
        if ids.is_expanded is is_expanded:
            return ids
        if ids not in self._other_ids:
            other = replace(ids, is_expanded=is_expanded)
            self._other_ids[ids], self._other_ids[other] = other, ids
        return self._other_ids[ids]

    def apply(self, node: fx.Node, function: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
        """Return what a function makes of arguments, computed once for each context if they allow it.

        Args:
            node: The node that calls it.
            function: Takes positional arguments and those by name.
            args: Positional arguments.
            kwargs: Arguments by name.
        """
        space = self._space_of((args, kwargs))
        if space is Space.CONTEXTS:
            try:
                return self.applied(function, args, kwargs)
            except NotLoweredError as error:
                self._journal.kept.append((node, str(error)))
        elif space is Space.ROWS and self._reads_contexts((args, kwargs)):
            self._journal.meetings.append(node)
        return function(args, kwargs)

    def applied(self, function: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
        """Return what a function makes of contexts.

        Raises:
            NotLoweredError: It does not read contexts alone, or cannot take them.
        """
        if self._space_of((args, kwargs)) is not Space.CONTEXTS:
            raise NotLoweredError("it computes with rows")
        return self._expand(function(*self._contexts_of((args, kwargs))))

    def note_outside(self, node: fx.Node, read: Sequence[Any], why: str) -> None:
        """Note that no step computes a node, if it reads contexts alone."""
        if _either(self._space_of(one) for one in read) is Space.CONTEXTS:
            self._outside.add(node)
            self._journal.kept.append((node, why))

    def _reads_contexts(self, one: Any) -> bool:
        """Return whether something reads, directly, what is expanded from contexts."""
        if isinstance(one, Value):
            return isinstance(one, Expand) or one in self._of_contexts
        if isinstance(one, slice):
            return False
        return any(map(self._reads_contexts, _parts_of(one)))

    def _space_of(self, one: Any) -> Space | None:
        """Return whether something depends on rows or on contexts alone; None if it is the same for all."""
        if isinstance(one, Outside):
            return Space.CONTEXTS if one.node in self._outside else Space.ROWS
        if isinstance(one, Value):
            if self._is_constant(one):
                return None
            return Space.CONTEXTS if isinstance(one, Expand) or one in self._of_contexts else Space.ROWS
        if isinstance(one, Ids):
            return Space.CONTEXTS if one.is_expanded else Space.ROWS
        if isinstance(one, Space | RowContext):
            return Space.ROWS
        if isinstance(one, NumRows):
            # A number of rows is one of contexts where the rest is.
            return None
        if isinstance(one, slice):
            one = (one.start, one.stop, one.step)
        return _either(map(self._space_of, _parts_of(one)))

    def _contexts_of(self, one: Any) -> Any:
        """Return something expanded as it is of contexts."""
        if isinstance(one, NumRows):
            return NumRows(_of_contexts(one.space), one.times)
        if isinstance(one, Expand):
            return one.source
        if isinstance(one, Ids):
            return self._ids(one, False)
        if isinstance(one, Value):
            return (
                self._of_contexts[one] if one in self._of_contexts else self._constant_of(one, _of_contexts)
            )
        return _mapped(one, self._contexts_of)

    def _expand(self, one: Any) -> Any:
        """Return what was made of contexts for the rows that share them."""
        if isinstance(one, NumRows):
            return NumRows(_expanded(one.space), one.times)
        if isinstance(one, Ids):
            return self._ids(one, True)
        if isinstance(one, Value) and self._is_constant(one):
            return self._constant_of(one, _expanded)
        if isinstance(one, Value):
            if one not in self._expanded:
                self._expanded[one] = self._expanded_value(one)
            return self._expanded[one]
        return _mapped(one, self._expand)

    def _expanded_value(self, value: Value) -> Value:
        if isinstance(value, Rows):
            return self.expanded_rows(value)
        if isinstance(value.space, IdsSpace):
            found: Value = replace(_replaced(value, self._expand), space=_expanded(value.space))
            self._of_contexts[found] = value
            return found
        if value.space is not Space.CONTEXTS:
            raise NotLoweredError("it computes with rows and contexts")
        return Expand(dims=value.dims, dtype=value.dtype, source=value)

    def _is_constant(self, value: Value) -> bool:
        """Return whether a value is computed of weights alone."""
        if value not in self._constants:
            is_made = isinstance(value, Weight) or bool(value.sources)
            self._constants[value] = is_made and all(map(self._is_constant, value.sources))
        return self._constants[value]

    def _constant_of(self, value: Value, space_of: Callable[[Space], Space]) -> Value:
        """Return what is computed of weights alone in another space."""
        space = space_of(value.space)
        if space is value.space:
            return value
        key = (value, space)
        if key not in self._in_spaces:

            def of(one: Any) -> Any:
                return self._constant_of(one, space_of) if isinstance(one, Value) else _mapped(one, of)

            self._in_spaces[key] = replace(_replaced(value, of), space=space)
        return self._in_spaces[key]


def _either(spaces: Iterable[Space | None]) -> Space | None:
    """Return the space of what depends on some others."""
    found = set(spaces)
    return Space.ROWS if Space.ROWS in found else Space.CONTEXTS if Space.CONTEXTS in found else None


def _of_contexts(space: Space) -> Space:
    if space is Space.ROWS:
        return Space.CONTEXTS
    return ids_space(space.bags, space.feature, False) if isinstance(space, IdsSpace) else space


def _expanded(space: Space) -> Space:
    if space is Space.CONTEXTS:
        return Space.ROWS
    return ids_space(space.bags, space.feature, True) if isinstance(space, IdsSpace) else space


def _parts_of(one: Any) -> list[Any]:
    """Return what something consists of that operators take, other than values."""
    if isinstance(one, dict):
        return list(one.values())
    if isinstance(one, (tuple, list)):
        return list(one)
    if isinstance(one, (Called, Part, Operand)) and is_dataclass(one):
        return [getattr(one, each.name) for each in fields(one)]
    return []


def _mapped(one: Any, function: Callable[[Any], Any]) -> Any:
    """Return the same of parts that a function makes."""
    if isinstance(one, dict):
        return {key: function(each) for key, each in one.items()}
    if isinstance(one, (tuple, list)):
        parts = [function(each) for each in one]
        return type(one)(*parts) if hasattr(one, "_fields") else type(one)(parts)
    if isinstance(one, slice):
        return slice(function(one.start), function(one.stop), function(one.step))
    if isinstance(one, (Called, Part, Operand)) and is_dataclass(one):
        return _replaced(one, function)
    return one


def _replaced(one: Any, function: Callable[[Any], Any]) -> Any:
    """Return a copy of a dataclass whose fields a function makes."""
    given = {each.name: function(getattr(one, each.name)) for each in fields(one) if each.init}
    return replace(one, **given)


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
