"""Which numbers of the inputs a node of a graph holds, where it only moves them, perhaps with constants added.

The nodes that move numbers are run on inputs that hold the numbers of their own places.

Shape letters: B batch.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from export.graph.tracing.sizes import input_name
from export.plain.traced import PlainGraph
from recsys.artifact.graphs import attribute

_NUM_ROWS = 3
# Under one name as methods and as functions.
_BOTH: tuple[str, ...] = (
    "squeeze",
    "unsqueeze",
    "flatten",
    "permute",
    "transpose",
    "reshape",
    "split",
    "chunk",
    "unbind",
)
_BOTH += ("narrow", "select", "clone", "swapaxes", "movedim", "unflatten")
_METHODS = {
    *_BOTH,
    "view",
    "t",
    "contiguous",
    "long",
    "int",
    "to",
    "detach",
    "float",
    "double",
    "type",
    "expand",
}
_METHODS |= {"view_as", "type_as"}
_JOINS = {getattr(torch, name) for name in ("cat", "concat", "stack", "hstack", "column_stack")}
_FUNCTIONS = {*_JOINS, *(getattr(torch, name) for name in _BOTH), operator.getitem}
_SIZES = frozenset({"size", "dim", "numel", "get_device", "type"})
_ATTRIBUTES = frozenset({"shape", "dtype", "device", "ndim"})
_ADDITIONS = {operator.add, operator.iadd, torch.add, "add", "add_"}
# What constants are made of, beside the moves.
_MAKERS = {
    torch.tensor,
    torch.as_tensor,
    "new_tensor",
    "to",
    *_ADDITIONS,
    operator.mul,
    torch.mul,
    operator.sub,
}


@dataclass(frozen=True, kw_only=True)
class Moved:
    """What a node holds of the inputs.

    Attributes:
        elements: The place of each number of a row among all of the inputs' rows, of the node's shape without B.
        shift: What is added to each; None for nothing.
    """

    elements: Tensor
    shift: Tensor | None = None

    @property
    def places(self) -> tuple[int, ...]:
        """The places in order."""
        return tuple(int(one) for one in self.elements.flatten().tolist())


@dataclass(frozen=True)
class _Codes:
    codes: Tensor
    shift: Tensor | None = None


class _Number:
    """A size, dtype or device of a batch."""

    def __init__(self, value: Any) -> None:
        self.value = value


def moved_nodes(plain: PlainGraph) -> dict[fx.Node, Moved]:
    """Return the nodes that hold numbers of the inputs, row by row."""
    places, leaves = plain.given.places, {leaf.name: leaf for leaf in plain.given.leaves}
    total = max(1, sum(map(len, places.values())))
    rows = torch.arange(_NUM_ROWS).view(-1, 1) * total
    env: dict[fx.Node, Any] = {}
    found = {}
    for node in plain.graph.nodes:
        name = input_name(node)
        if name is not None:
            leaf, of_leaf = leaves[name], places[name]
            codes = (rows + torch.arange(of_leaf.start, of_leaf.stop)).view(_NUM_ROWS, *leaf.shape)
            env[node] = _Codes(codes.double() if leaf.is_float else codes)
        else:
            try:
                value = _value(plain, node, env)
            except Exception:  # what cannot be run so is no move
                continue
            if value is not None:
                env[node] = value
        if isinstance(env.get(node), _Codes):
            moved = _of_rows(env[node], total)
            if moved is not None:
                found[node] = moved
    return found


def _of_rows(value: _Codes, total: int) -> Moved | None:
    codes = value.codes.long()
    if not codes.dim() or codes.shape[0] != _NUM_ROWS or not codes.numel():
        return None
    elements = codes % total
    row = torch.arange(_NUM_ROWS).view(-1, *[1] * (codes.dim() - 1))
    if not bool((codes // total == row).all()) or not bool((elements == elements[0]).all()):
        return None
    shift = value.shift
    if shift is not None and not bool((shift == shift[0]).all()):
        return None
    return Moved(elements=elements[0], shift=None if shift is None else shift[0].long())


def _value(plain: PlainGraph, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
    """Return what a node is: codes, a number, a constant; None where it is something else."""
    if node.op == "get_attr":
        found = attribute(plain.root, str(node.target))
        small = isinstance(found, Tensor) and not isinstance(found, torch.nn.Parameter)
        return found if small and found.numel() <= 1 << 20 else None
    if node.op not in ("call_function", "call_method") or any(one not in env for one in node.all_input_nodes):
        return None
    inputs = [env[one] for one in node.all_input_nodes]
    codes = [one for value in inputs for one in _all(value) if isinstance(one, _Codes)]
    target = node.target
    if not codes:
        if any(
            isinstance(one, _Number) and not isinstance(one.value, (torch.dtype, torch.device))
            for one in inputs
        ):
            return _Number(_run(node, env, lambda v: v)) if target is operator.getitem else None
        is_made = target in _METHODS or target in _FUNCTIONS or target in _MAKERS
        return _run(node, env, lambda v: v) if is_made else None
    if is_size(node):
        return _Number(_run(node, env, lambda v: v.codes))
    if target in _ADDITIONS:
        return _added(node, env)
    if (target not in _METHODS and target not in _FUNCTIONS) or _indexes(node, env):
        return None
    moved = _run(node, env, lambda v: v.codes)
    if all(one.shift is None for one in codes):
        return _wrapped(moved, None)
    shifts = _run(node, env, lambda v: torch.zeros_like(v.codes) if v.shift is None else v.shift)
    return _wrapped(moved, shifts)


def is_size(node: fx.Node) -> bool:
    """Return whether a node is a size, a type or another property of a tensor."""
    target = node.target
    return (
        (target is getattr and node.args[1] in _ATTRIBUTES)
        or target is len
        or (node.op == "call_method" and target in _SIZES and not (target == "type" and len(node.args) > 1))
    )


def _added(node: fx.Node, env: dict[fx.Node, Any]) -> _Codes | None:
    values: list[Any] = [env[one] if isinstance(one, fx.Node) else one for one in node.args]
    a, b = values
    if isinstance(b, _Codes):
        a, b = b, a
    if isinstance(b, (_Codes, _Number)) or not isinstance(a, _Codes) or node.kwargs:
        return None
    before = torch.zeros_like(a.codes) if a.shift is None else a.shift
    shift: Tensor = before + b
    return _Codes(a.codes.expand(shift.shape), shift) if shift.dim() else None


def _indexes(node: fx.Node, env: dict[fx.Node, Any]) -> bool:
    """Return whether numbers of the inputs are taken as an index, and not moved."""
    if node.target in _JOINS:
        return False
    return any(
        isinstance(one, _Codes)
        for other in node.all_input_nodes
        if other is not node.args[0]
        for one in _all(env[other])
    ) and node.target not in ("view_as", "type_as")


def _run(node: fx.Node, env: dict[fx.Node, Any], of_codes: Any) -> Any:
    def value(one: fx.Node) -> Any:
        return plain_value(env[one])

    def plain_value(found: Any) -> Any:
        if isinstance(found, _Codes):
            return of_codes(found)
        if isinstance(found, _Number):
            return found.value
        if isinstance(found, (tuple, list)):
            return type(found)(map(plain_value, found)) if type(found) in (tuple, list) else found
        return found

    args = fx.node.map_arg(node.args, value)
    kwargs = fx.node.map_arg(node.kwargs, value)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _wrapped(codes: Any, shift: Any) -> Any:
    if isinstance(codes, (tuple, list)):
        shifts = [None] * len(codes) if shift is None else shift
        return tuple(_wrapped(one, other) for one, other in zip(codes, shifts, strict=True))
    return _Codes(codes, shift)


def _all(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [part for one in value for part in _all(one)]
    return [value]
