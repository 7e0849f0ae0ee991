"""The shapes and types of what the nodes of a graph return."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from export.graph.tracing.tracer import LINE


class Recorder(fx.Interpreter):
    """Runs a graph, and keeps a tensor without numbers for each node that is one.

    Args:
        module: The graph's module.
        graph: The graph; None for the module's own.

    Attributes:
        found: These tensors.
    """

    def __init__(self, module: nn.Module, graph: fx.Graph | None = None) -> None:
        super().__init__(module, graph=graph)
        self.found: dict[fx.Node, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, and keep what it is."""
        # Read by export.graph.tracing.source_location, for errors.
        model_line = n.meta.get(LINE)
        result = super().run_node(n)
        del model_line
        if isinstance(result, Tensor):
            self.found[n] = torch.empty_like(result, device="meta")
        return result
