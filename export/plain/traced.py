"""The graph of a plain model: tensors in, tensors out, as torch.fx follows its code.

Shape letters: B batch.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from export.graph.inputs.forward import flat_outputs, parts_of
from export.graph.modules import replace_modules
from export.graph.passes import is_pure
from export.graph.tracing.sizes import BatchSizes, Sizes
from export.graph.tracing.tracer import trace
from export.plain.exported import exported_graph
from export.plain.given import Given
from recsys.errors import ExportError

#: The attribute of the traced module that is the user's model.
MODEL = "model"


@dataclass(frozen=True, kw_only=True)
class PlainGraph:
    """The graph of a plain model.

    Attributes:
        root: The traced module: its attribute ``MODEL`` is the user's model in eval mode.
        graph: Its nodes; ``input_name`` tells which are leaves of the inputs.
        given: The example inputs.
        is_exported: Whether ``torch.export`` made the graph, and not torch.fx.
    """

    root: nn.Module
    graph: fx.Graph
    given: Given
    is_exported: bool = False


class _Root(nn.Module):
    def __init__(self, model: nn.Module, given: Given, outputs: Collection[str]) -> None:
        super().__init__()
        self.add_module(MODEL, model)
        self._given, self._outputs = given, outputs

    def forward(self, tensors: dict[str, Tensor]) -> Any:
        found = outputs_of(self._given.call(self.get_submodule(MODEL), tensors.__getitem__))
        if not self._outputs or not isinstance(found, dict):
            return found
        # An unknown name is reported with the names that there are, when the pipeline keeps outputs.
        return {name: one for name, one in found.items() if name in self._outputs} or found

    def example(self, sizes: BatchSizes) -> dict[str, Any]:
        """Return the argument of ``forward`` for a batch."""
        return {
            "tensors": {
                leaf.name: torch.empty(sizes.rows, *leaf.shape, dtype=leaf.tensor.dtype)
                for leaf in self._given.leaves
            }
        }


def outputs_of(found: Any) -> Any:
    """Return what ``forward`` returned as a tensor, or as a dict of those that are within it; None is left out."""
    if parts_of(found) is None:
        return found
    return {name: one for name, one in flat_outputs(found) if one is not None}


def traced(model: nn.Module, given: Given, outputs: Collection[str] = ()) -> PlainGraph:
    """Trace a plain model by torch.fx, or by ``torch.export`` where torch.fx cannot follow its code.

    Args:
        model: The model, which is not changed.
        given: Its example inputs.
        outputs: The names of the outputs to keep; all if it is empty.

    Raises:
        ExportError: Its code cannot be followed; the message names the line.
    """
    root = _Root(replace_modules(model, {}), given, outputs)
    try:
        with _without_proxies(root):
            graph = trace(root, Sizes(root, root.example, {}))
    except ExportError as failure:
        try:
            return traced_by_export(model, given, outputs)
        except Exception:  # torch's, and the model's
            # Its own cause: torch.export fails elsewhere, and in other words.
            raise failure from failure.__cause__
    return _plain_graph(root, graph, given, is_exported=False)


@contextmanager
def _without_proxies(root: nn.Module) -> Iterator[None]:
    """Give modules back what they held where code keeps traced values: ``self.alpha = self.alpha.to(x.device)``."""
    before = [(module, dict(vars(module))) for module in root.modules()]
    try:
        yield
    finally:
        for module, held in before:
            for name in [name for name, value in vars(module).items() if isinstance(value, fx.Proxy)]:
                del vars(module)[name]
                vars(module).update({name: held[name]} if name in held else {})


def traced_by_export(model: nn.Module, given: Given, outputs: Collection[str] = ()) -> PlainGraph:
    """Trace a plain model by ``torch.export``, which follows changes in place wherever they are seen.

    Args:
        model: The model, which is not changed.
        given: Its example inputs.
        outputs: The names of the outputs to keep; all if it is empty.

    Raises:
        Exception: torch.export, or what it cannot follow, fails.
    """
    root = _Root(replace_modules(model, {}), given, outputs)
    return _plain_graph(root, exported_graph(root, given), given, is_exported=True)


def _plain_graph(root: nn.Module, graph: fx.Graph, given: Given, *, is_exported: bool) -> PlainGraph:
    for node in reversed(graph.nodes):
        if not node.users and node.op != "placeholder" and is_pure(root, node):
            graph.erase_node(node)
    _normalize(root, graph)
    return PlainGraph(root=root, graph=graph, given=given, is_exported=is_exported)


def _normalize(root: nn.Module, graph: fx.Graph) -> None:
    """Change the nodes of a graph.

    Args:
        root: The traced module, which gets the constants.
        graph: The graph.
    """
    for node in list(graph.nodes):
        if node.target is operator.getitem and len(node.args) == 2 and isinstance(node.args[1], tuple):
            _index_by_tensors(root, graph, node)


def _index_by_tensors(root: nn.Module, graph: fx.Graph, node: fx.Node) -> None:
    """Let a node take several places of a dimension by a constant, and not by a list of numbers."""
    source, index = node.args
    assert isinstance(index, tuple)
    found: list[Any] = []
    for one in index:
        if isinstance(one, (list, tuple)) and one and all(type(place) is int for place in one):
            name = f"places_{len(list(root.buffers()))}"
            root.register_buffer(name, torch.tensor(one), persistent=False)
            with graph.inserting_before(node):
                found.append(graph.get_attr(name))
        else:
            found.append(one)
    node.args = (source, tuple(found))
