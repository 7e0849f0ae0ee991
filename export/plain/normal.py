"""Nodes in the forms that the rest of the export knows, where code gives arguments as NumPy takes them."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn


def normalize(root: nn.Module, graph: fx.Graph) -> None:
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
