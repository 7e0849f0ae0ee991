"""Tracing of the user's code by torch.fx."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import SymInt, Tensor, fx, nn

from export.graph.modules import has_hooks
from export.graph.tracing import layers, packed, patches, placeholders
from export.graph.tracing.layers import own_call
from export.graph.tracing.packed import PackedRows, called_on_packed
from export.graph.tracing.patches import has_jagged, patched
from export.graph.tracing.placeholders import OPEN_LENGTH, Placeholder
from export.graph.tracing.sizes import OPEN, SYMBOLIC, Sizes
from export.graph.tracing.source_location import TORCH, Line, explained, line_of_caller
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection
from recsys.errors import ExportError

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_COLLECTIONS = (EmbeddingBagCollection, EmbeddingCollection)
# torch parses their sizes itself, and refuses those of a traced tensor.
_FACTORIES = (torch.zeros, torch.ones, torch.empty, torch.full, torch.arange, torch.eye)
# Arguments that have other names in TorchScript, and those that it does not have and graphs do not need.
_AS_SCRIPTED = {"axis": "dim", "keepdims": "keepdim"}
_NOT_SCRIPTED = ("requires_grad", "pin_memory")
# Code that stands between the model's and the graph.
_HERE = {__file__, layers.__file__, packed.__file__, patches.__file__, placeholders.__file__}
#: Where a node's ``meta`` has the line of the model's code that made it.
LINE = "line"
#: What the ``meta`` of a ``squeeze`` has if every batch has the size of the dimension that it takes out.
SETTLED = "settled"


def _knows_axis(target: Any) -> bool:
    """Return whether an operator, such as ``segment_reduce``, has an argument ``axis`` in TorchScript too."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    operators = getattr(torch.ops.aten, name.lstrip("_"), None) if name.strip("_") else None
    overloads = [] if operators is None else [getattr(operators, kind) for kind in operators.overloads()]
    return any(argument.name == "axis" for one in overloads for argument in one._schema.arguments)


class ModelTracer(fx.Tracer):
    """Traces through everything except torch's layers, so that no other class is left in the graph.

    Args:
        sizes: What is known of the module's sizes.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(autowrap_functions=_FACTORIES)
        self._autowrap_search.append(torch)
        self.sizes = sizes
        self._constants: dict[int, tuple[Tensor, Tensor]] = {}

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """Trace a module."""
        graph = super().trace(root, concrete_args)
        self.sizes.remove_asked(graph)
        return graph

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return a node's placeholder."""
        return Placeholder(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Return what a decision of the model's code is in every batch.

        Raises:
            TraceError: It depends on the batch.
        """
        found = self.sizes.constant(obj.node)
        if found is OPEN and self.sizes.follows_from_width(obj.node):
            raise fx.proxy.TraceError("control flow that follows from the width of a dense argument")
        return super().to_bool(obj) if found is OPEN else bool(found)

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Return an iterator over parts whose number is the same in every batch.

        Raises:
            TraceError: It is not.
        """
        count = self.sizes.num_parts(obj.node)
        parts: Any = obj
        return super().iter(obj) if count is None else iter([parts[i] for i in range(count)])

    def dtype(self, obj: fx.Proxy) -> torch.dtype:
        """Return a traced dtype.

        Raises:
            TypeError: It is open.
        """
        found = self.sizes.constant(obj.node)
        if not isinstance(found, torch.dtype):
            raise TypeError("a dtype that cannot be told, expected that of a tensor")
        # Sizes are told in float32, whatever the layers' dtype is.
        return getattr(self.root, "_dense_dtype", found) if found is torch.float32 else found

    def known(self, obj: fx.Proxy) -> Any:
        """Return a traced size, or sizes, as numbers; what holds tensors as it is.

        Raises:
            TypeError: They differ between batches.
        """
        if self.sizes.holds_tensors(obj.node):
            return obj
        found = self.sizes.constant(obj.node)
        return type(found)(map(_number, found)) if isinstance(found, (tuple, list)) else _number(found)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Add a node, with the line of the model's code that asks for it."""
        node = super().create_node(*args, **kwargs)
        line = _line_of_model()
        if line is not None:
            node.meta[LINE] = line
        return node

    def create_proxy(
        self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *more: Any, **named: Any
    ) -> Any:
        """Add a node.

        A ``squeeze`` takes out dimensions that have the size 1 in every batch, so never the rows; ``new_tensor`` of
        constants makes a constant. What TorchScript knows by another name, or not at all, is called as it does.

        Raises:
            TypeError: Which dimensions have the size 1 is open.
        """
        names = {} if _knows_axis(target) else _AS_SCRIPTED
        kwargs = {names.get(name, name): value for name, value in kwargs.items() if name not in _NOT_SCRIPTED}
        if target is operator.getitem:
            args = (args[0], _indices(args[1]))
        if target is nn.functional.one_hot and [*args[1:], *kwargs.values()][:1] in ([], [-1]):
            raise TypeError("one_hot() without num_classes: how many there are differs between batches")
        size = self._squeezed_size(*args, **kwargs) if target in ("squeeze", torch.squeeze) else None
        if isinstance(size, SymInt):
            return args[0]
        if target in ("squeeze", torch.squeeze) and len(args) == 1 and not kwargs:
            source = args[0]
            dims = self.sizes.single_dims(source.node)
            if dims is None:
                raise TypeError(
                    "squeeze() without dim: which dimensions have the size 1 in every batch is open"
                )
            if not dims:
                return source
            args, size = (source, dims[0] if len(dims) == 1 else tuple(dims)), 1
        if kind == "call_method" and target == "new_tensor" and not _proxies(args[1:]):
            dtype = kwargs.get("dtype", args[0].dtype)
            made = torch.as_tensor(*args[1:])
            return super().create_proxy("call_method", "to", (made, dtype), {})
        added = super().create_proxy(kind, target, args, kwargs, *more, **named)
        if size is not None:
            added.node.meta[SETTLED] = True
        return added

    def squeezed(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Proxy:
        """Add a ``squeeze`` of dimensions whose sizes every batch has, as the caller knows: to tell takes long."""
        return super().create_proxy(kind, target, args, kwargs)

    def _squeezed_size(self, source: fx.Proxy, dim: Any = None) -> Any:
        """Return the size of a dimension, which must not go if it differs between batches; None if it is open."""
        return self.sizes.size(source.node, dim) if isinstance(dim, int) else None

    def create_arg(self, a: Any) -> Any:
        """Return a value as a node's argument: arrays of NumPy, and weights from outside of the model, as constants."""
        if isinstance(a, np.generic):
            a = a.item()
        if isinstance(a, np.ndarray) and a.dtype != object:
            a = self._kept(a, lambda: torch.from_numpy(np.ascontiguousarray(a)))
        if isinstance(a, Tensor) and (a.requires_grad or isinstance(a, nn.Parameter)) and not self._is_own(a):
            a = self._kept(a, lambda: a.detach())
        return super().create_arg(a)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        """Return an attribute of a module: a placeholder for a parameter, unless the module is run."""
        return attr_val if self.sizes.is_running else super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002
        """Return whether a module is a layer of torch, which is not traced through unless hooks run around it."""
        if isinstance(m, torch.jit.ScriptModule):
            return True
        return m.__module__.startswith("torch.nn") and not isinstance(m, _CONTAINERS) and not has_hooks(m)

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a layer, which stays in the graph.

        What gets our data types, which no node can take, or is not part of the model, such as a layer that ``forward``
        makes, is traced through.

        Raises:
            ExportError: It is a collection that is not part of the model.
        """
        is_part = m in (self.submodule_paths or {})
        if not is_part and isinstance(m, _COLLECTIONS):
            raise ExportError(
                f"model: a {type(m).__name__} is called that is no submodule, so that its tables cannot be served: "
                "make it an attribute of a module, or an item of a ModuleList or ModuleDict"
            )
        if args and isinstance(args[0], PackedRows):
            return called_on_packed(m, args[0], args[1:] or tuple(kwargs.values()), self._called_part)
        instead = None if self.sizes.is_running else own_call(m)
        if instead is not None:
            return instead(*args, **kwargs)
        if self.sizes.is_running or has_jagged(args) or has_jagged(kwargs) or not is_part:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def _called_part(self, layer: nn.Module, name: str, part: nn.Module, args: tuple[Any, ...]) -> Any:
        """Call what a layer of the model is made of; the layer holds it from now on, under a name."""
        part = layer._modules.setdefault(name, part) or part
        self.submodule_paths = {**(self.submodule_paths or {}), part: f"{self.path_of_module(layer)}.{name}"}
        return super().call_module(part, part.forward, args, {})

    def _is_own(self, tensor: Tensor) -> bool:
        return any(tensor is one for one in self.root.parameters())

    def _kept(self, source: Any, make: Any) -> Tensor:
        """Return the constant that was made of a value; each is made once."""
        if id(source) not in self._constants:
            self._constants[id(source)] = (source, make())
        return self._constants[id(source)][1]


def trace(root: nn.Module, sizes: Sizes | None = None) -> fx.Graph:
    """Trace a model.

    Args:
        root: The model.
        sizes: What is known of its sizes; None if nothing is.

    Raises:
        ExportError: FX does not support the model's code; the message says what failed, and where.
    """
    sizes = sizes or Sizes(root, lambda _: {}, {})
    try:
        with patched(root):
            graph = ModelTracer(sizes).trace(root)
    except ExportError:
        raise
    except Exception as error:  # user code can raise anything
        cause, said = _explained(error, sizes)
        raise ExportError(f"model: cannot be traced by torch.fx: {said}") from cause
    for node in graph.nodes:
        if node.target in _FACTORIES:
            # Or generated code would name it to torch.fx.wrap, which takes no dots.
            node.meta.pop("is_wrapped", None)
    return graph


def _explained(error: Exception, sizes: Sizes) -> tuple[Exception, str]:
    """Return an error, or the one for which sizes were not known, and what to say of it."""
    asked = isinstance(error, fx.proxy.TraceError) or OPEN_LENGTH in str(error)
    if not asked or sizes.failure is None:
        return error, explained(error)
    failed, node = sizes.failure
    line = node.meta.get(LINE)
    return failed, explained(failed, default="", place="" if line is None else str(line))


def _number(found: Any) -> Any:
    if found is OPEN or isinstance(found, SYMBOLIC):
        raise TypeError("a size that differs between batches cannot be interpreted as an integer of a layer")
    return found


def _line_of_model() -> Line | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (
        frame.f_code.co_filename in _HERE or frame.f_code.co_filename.startswith(TORCH)
    ):
        frame = frame.f_back
    return line_of_caller(frame)


def _indices(index: Any) -> Any:
    """Return an index whose tuples of numbers, within a tuple, are lists: TorchScript takes no others."""
    if not isinstance(index, tuple):
        return index
    return tuple(list(one) if isinstance(one, tuple) else one for one in index)


def _proxies(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_proxies, value))
    return isinstance(value, fx.Proxy)
