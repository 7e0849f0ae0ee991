"""The graph of a plain model by ``torch.export``, where torch.fx cannot follow its code.

Its operators become the functions and methods that code calls, which the rest of the export knows.

Shape letters: B batch.
"""

from __future__ import annotations

import io
import logging
import operator
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from export.graph.tracing.placeholders import tells_apart
from export.graph.tracing.source_location import Line, is_of_model
from export.graph.tracing.tracer import LINE
from export.plain.given import Given
from recsys.errors import ExportError

# The most rows of a batch; torch.export wants a bound.
_MOST_ROWS = 1 << 20
_FRAME = re.compile(r'File "(.+)", line (\d+), in (\S+)')
# Where tensors lie and how is the graph's business.
_DROPPED = ("device", "layout", "pin_memory", "memory_format", "copy")
_SAME = ("alias", "detach", "lift_fresh_copy", "lift_fresh", "detach_")
_HOLDERS = (torch, functional, torch._C._nn)


class _Called(nn.Module):
    def __init__(self, root: nn.Module, given: Given) -> None:
        super().__init__()
        self.root, self._given = root, given

    def forward(self, *tensors: Tensor) -> Any:
        return self.root(dict(zip(self._given.tensors, tensors, strict=True)))


def exported_graph(root: nn.Module, given: Given) -> fx.Graph:
    """Return the graph of a root that takes its tensors by name, in the form of ``trace``.

    Args:
        root: The module; it gets the constants of the graph.
        given: The example inputs.

    Raises:
        Exception: torch.export, or what it cannot follow, fails.
    """
    rows = torch.export.Dim("B", min=1, max=_MOST_ROWS)
    tensors = given.tensors
    shapes = tuple({0: rows} for _ in tensors)
    with torch.no_grad(), _quiet(), _hashed_sizes():
        program = torch.export.export(
            _Called(root, given), tuple(tensors.values()), dynamic_shapes=(shapes,), strict=False
        )
        if any(map(_changes, program.graph.nodes)):
            program = program.run_decompositions({})  # without changes in place
        example = root(given.cloned())
    names = list(example) if isinstance(example, dict) else None
    return _Rewriting(root, given, program.module()).graph(names)


@contextmanager
def _hashed_sizes() -> Iterator[None]:
    """Let code put sizes into sets and dictionaries, which then compare them."""
    before = torch.SymInt.__hash__

    def of_any(size: torch.SymInt) -> int:
        """Return one hash for all sizes that differ between batches; see ``Sizes.key``."""
        caller = sys._getframe(1)
        if is_of_model(caller.f_code.co_filename) and not tells_apart(caller):
            return hash(1)
        return before(size)

    torch.SymInt.__hash__ = of_any  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.SymInt.__hash__ = before  # type: ignore[method-assign]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep from users what torch prints of code that it cannot follow, and warns of what it calls."""
    remarks = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level = remarks.level
    remarks.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        remarks.setLevel(level)


class _Rewriting:
    """The nodes of a graph of ATen's operators as those of code."""

    def __init__(self, root: nn.Module, given: Given, module: Any) -> None:
        self._root, self._module = root, module
        self._leaves = iter(given.tensors)
        self._new = fx.Graph()
        self._tensors = self._new.placeholder("tensors")
        self._env: dict[fx.Node, Any] = {}

    def graph(self, names: list[str] | None) -> fx.Graph:
        """Return the graph, whose output is a dict of these names, or one tensor."""
        for node in self._module.graph.nodes:
            if node.op == "output":
                flat = fx.node.map_arg(node.args[0], self._env.__getitem__)
                flat = flat if isinstance(flat, (tuple, list)) else [flat]
                self._new.output(flat[0] if names is None else dict(zip(names, flat, strict=True)))
                break
            self._env[node] = made = self._made(node)
            line = _line_of(node)
            if isinstance(made, fx.Node) and line is not None:
                made.meta.setdefault(LINE, line)
        return self._new

    def _made(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._new.call_function(operator.getitem, (self._tensors, next(self._leaves)))
        if node.op == "get_attr":
            return self._attribute(str(node.target))
        if node.op != "call_function":
            return None  # guards of the example's sizes
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._env.__getitem__)
        if "functorch" in getattr(node.target, "__module__", ""):
            raise ExportError("model: torch.vmap and torch.func are not known")
        if not isinstance(node.target, torch._ops.OpOverload):
            return self._new.call_function(node.target, args, kwargs)  # type: ignore[arg-type]
        name = node.target._schema.name.partition("::")[2]
        kwargs = {key: value for key, value in kwargs.items() if key not in _DROPPED}
        if node.target.namespace != "aten":
            return self._new.call_function(node.target, args, kwargs)
        if name in _SAME or (name == "dropout" and not args[2]):
            return args[0]
        if name.startswith("_assert") or name == "sym_constrain_range_for_size":
            return None
        special = getattr(self, f"op_{name}", None)
        return special(node, *args, **kwargs) if special is not None else self._called(name, args, kwargs)

    def _attribute(self, path: str) -> fx.Node:
        """Return the node of an attribute: one of the root, or a constant that torch.export has found."""
        inner = path.removeprefix("root.")
        owner, _, name = inner.rpartition(".")
        if inner == path or not hasattr(self._root.get_submodule(owner), name):
            owner, _, name = path.rpartition(".")
            found = getattr(self._module.get_submodule(owner), name)
            inner = f"lifted_{len(list(self._root.buffers()))}"
            self._root.register_buffer(inner, found.detach().clone(), persistent=False)
        return self._new.get_attr(inner)

    def _called(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        for holder in _HOLDERS:
            if hasattr(holder, name):
                return self._new.call_function(getattr(holder, name), args, kwargs)
        if hasattr(Tensor, name):
            return self._new.call_method(name, args, kwargs)
        return self._new.call_function(getattr(torch.ops.aten, name), args, kwargs)

    def op_copy_(self, _: fx.Node, x: Any, __: Any) -> None:
        """Leave out what a call leaves behind in its inputs, or refuse what it leaves behind in the model."""
        if isinstance(x, fx.Node) and x.op == "get_attr":
            raise ExportError(f"model: {changed_buffer(str(x.target))}")

    # Operators whose arguments are not those of the function of their name; the node tells shapes.

    def op_sym_size(self, _: fx.Node, x: Any, dim: int) -> fx.Node:
        return self._new.call_method("size", (x, dim))

    def op_slice(self, node: fx.Node, x: Any, dim: int = 0, *bounds: Any) -> Any:
        given: list[Any] = [*bounds, *(None, None, 1)[len(bounds) :]]
        begin, end, step = given
        if begin in (0, None) and end in (None, sys.maxsize) and step == 1:
            return x
        dim = dim % node.meta["val"].dim()
        end = None if end == sys.maxsize else end
        part = slice(begin, end, None if step == 1 else step)
        return self._new.call_function(operator.getitem, (x, (*[slice(None)] * dim, part)))

    def op_index(self, _: fx.Node, x: Any, indices: list[Any]) -> fx.Node:
        places = tuple(slice(None) if one is None else one for one in indices)
        return self._new.call_function(operator.getitem, (x, places[0] if len(places) == 1 else places))

    def op_index_put(
        self, _: fx.Node, x: Any, indices: list[Any], values: Any, accumulate: bool = False
    ) -> fx.Node:
        dims = [dim for dim, one in enumerate(indices) if one is not None]
        if len(dims) == len(indices):
            return self._new.call_function(torch.index_put, (x, tuple(indices), values, accumulate))
        # An index behind dimensions that are taken whole, as in x[:, places] = values.
        index = indices[dims[0]]
        of_index = next(one for one, made in self._env.items() if made is index).meta["val"]
        if len(dims) > 1 or of_index.dim() != 1 or of_index.dtype is torch.bool or accumulate:
            raise ExportError(
                f"model: an assignment to {len(dims)} indices behind whole dimensions is not known"
            )
        replaced = self._new.call_function(torch.index_select, (x, dims[0], index))
        values = self._new.call_method("expand_as", (values, replaced))
        return self._new.call_function(torch.index_copy, (x, dims[0], index, values))

    def op_embedding(self, _: fx.Node, weight: Any, ids: Any, padding_idx: int = -1, *__: Any) -> fx.Node:
        padding: dict[str, Any] = {} if padding_idx < 0 else {"padding_idx": padding_idx}
        return self._new.call_function(functional.embedding, (ids, weight), padding)

    def op_layer_norm(
        self,
        _: fx.Node,
        x: Any,
        shape: Any,
        weight: Any = None,
        bias: Any = None,
        eps: float = 1e-5,
        *__: Any,
    ) -> fx.Node:
        return self._new.call_function(functional.layer_norm, (x, shape, weight, bias, eps))

    def op_batch_norm(self, _: fx.Node, x: Any, *rest: Any) -> fx.Node:
        weight, bias, mean, variance, training, momentum, eps = rest[:7]
        args = (x, mean, variance, weight, bias, training, momentum, eps)
        return self._new.call_function(functional.batch_norm, args)

    def op_to(self, _: fx.Node, x: Any, *rest: Any, dtype: Any = None, **__: Any) -> Any:
        dtype = next((one for one in rest if isinstance(one, torch.dtype)), dtype)
        return x if dtype is None else self._new.call_method("to", (x, dtype))

    def op__to_copy(self, node: fx.Node, x: Any, **kwargs: Any) -> Any:
        return self.op_to(node, x, **kwargs)

    def op_contiguous(self, _: fx.Node, x: Any, **__: Any) -> fx.Node:
        return self._new.call_method("contiguous", (x,))

    def op_view(self, _: fx.Node, x: Any, sizes: list[Any]) -> fx.Node:
        return self._new.call_method("reshape", (x, *sizes))

    def op__unsafe_view(self, node: fx.Node, x: Any, sizes: list[Any]) -> fx.Node:
        return self.op_view(node, x, sizes)  # of a copy whose memory format is dropped

    def op_reshape(self, node: fx.Node, x: Any, sizes: list[Any]) -> fx.Node:
        return self.op_view(node, x, sizes)

    def op_expand(self, _: fx.Node, x: Any, sizes: list[Any], **__: Any) -> fx.Node:
        return self._new.call_method("expand", (x, *sizes))

    def op_permute(self, _: fx.Node, x: Any, dims: list[int]) -> fx.Node:
        return self._new.call_method("permute", (x, *dims))


def changed_buffer(name: str) -> str:
    """Return what to say of a model whose calls change a buffer."""
    return (
        f"forward changes the buffer {name.removeprefix('model.')!r}, so that answers would depend on the calls "
        "before: expected a forward that keeps nothing between calls. Change it only `if self.training`"
    )


def _changes(node: fx.Node) -> bool:
    """Return whether a node changes a tensor that it is given."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _line_of(node: fx.Node) -> Line | None:
    """Return the innermost line of the model's code that asked for a node."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    for file, number, function in reversed(frames):
        if is_of_model(file):
            return Line(file=file, number=int(number), function=function)
    return None
