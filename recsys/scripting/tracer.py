"""An FX tracer that knows embedding collections, by TorchRec's names."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, get_type_hints

from torch import fx, nn

from recsys.embedding import EmbeddingBagCollectionInterface, EmbeddingCollectionInterface
from recsys.managed.embedding import BaseManagedCollisionEmbeddingCollection
from recsys.scripting.scripted import know_types
from recsys.sharding.sharded import ShardedCollection

_IS_TRACING: ContextVar[bool] = ContextVar("is_tracing", default=False)
# They look at a batch's keys, which a batch that is an input of the graph has not got.
_LEAVES = (
    EmbeddingBagCollectionInterface,
    EmbeddingCollectionInterface,
    BaseManagedCollisionEmbeddingCollection,
    ShardedCollection,
)


def is_fx_tracing() -> bool:
    """Return whether a ``Tracer`` is at work in this thread."""
    return _IS_TRACING.get()


class Tracer(fx.Tracer):
    """Makes graphs of models: embedding collections are called as they are.

    Annotations that are texts (``from __future__ import annotations``) are resolved, so that the graph can be
    compiled with ``torch.jit.script``.

    Args:
        leaf_modules: Names of further classes whose modules are called as they are.
    """

    def __init__(self, leaf_modules: list[str] | None = None) -> None:
        super().__init__()
        self._leaf_modules = list(leaf_modules or ())

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is called as it is."""
        if isinstance(m, _LEAVES) or type(m).__name__ in self._leaf_modules:
            return True
        return super().is_leaf_module(m, module_qualified_name)

    def trace(
        self, root: nn.Module | Callable[..., Any], concrete_args: dict[str, Any] | None = None
    ) -> fx.Graph:
        """Return the graph of a model or function; ``concrete_args`` are arguments that become constants of it."""
        know_types()
        token = _IS_TRACING.set(True)
        try:
            graph = super().trace(root, concrete_args)
        finally:
            _IS_TRACING.reset(token)
        function = type(root).forward if isinstance(root, nn.Module) else root
        for node in graph.nodes:
            if isinstance(node.type, str):
                node.type = _type_of(function, "return" if node.op == "output" else node.target)
        return graph


def symbolic_trace(
    root: nn.Module | Callable[..., Any],
    concrete_args: dict[str, Any] | None = None,
    leaf_modules: list[str] | None = None,
) -> fx.GraphModule:
    """Return a model or function as a graph; the arguments are those of ``Tracer`` and its ``trace``."""
    tracer = Tracer(leaf_modules)
    graph = tracer.trace(root, concrete_args)
    name = type(root).__name__ if isinstance(root, nn.Module) else root.__name__
    return fx.GraphModule(tracer.root, graph, name)


def _type_of(function: Callable[..., Any], name: str) -> Any:
    """Return the type that an annotation's text means; None if it names what only type checkers import."""
    try:
        return get_type_hints(function).get(name)
    except NameError:
        return None
