"""The graph of a plain model: tensors in, tensors out, as torch.fx follows its code.

Shape letters: B batch.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from export.graph.inputs.forward import flat_outputs, parts_of
from export.graph.modules.tree import replace_modules
from export.graph.tracing.sizes import BatchSizes, Sizes
from export.graph.tracing.tracer import trace
from export.plain.exported import exported_graph
from export.plain.given import Given
from export.plain.normal import normalize
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
    """

    root: nn.Module
    graph: fx.Graph
    given: Given


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
    """Trace a plain model.

    Args:
        model: The model, which is not changed.
        given: Its example inputs.
        outputs: The names of the outputs to keep; all if it is empty.

    Raises:
        ExportError: Its code cannot be followed; the message names the line.
    """
    root = _Root(replace_modules(model, {}), given, outputs)
    try:
        graph = trace(root, Sizes(root, root.example, {}))
    except ExportError as failure:
        try:
            graph = exported_graph(root, given)
        except Exception as error:  # torch's, and the model's
            raise failure from error
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output") and not writes(node):
            graph.erase_node(node)
    normalize(root, graph)
    return PlainGraph(root=root, graph=graph, given=given)


def writes(node: fx.Node) -> bool:
    """Return whether a node changes a tensor that it is given."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    is_in_place = name.endswith("_") and not name.endswith("__")
    return node.op in ("call_function", "call_method") and (is_in_place or node.target is operator.setitem)
