"""Which nodes of a trace take its inputs, and which descend from them."""

from __future__ import annotations

from collections.abc import Collection

from torch import fx


def input_name(node: fx.Node) -> str | None:
    """Return the name under which a node takes an input from the root's argument; that of a dense one is its own."""
    if node.op != "call_function" or len(node.args) != 2 or not isinstance(node.args[1], str):
        return None
    source = node.args[0]
    return node.args[1] if isinstance(source, fx.Node) and source.op == "placeholder" else None


def descendants(
    graph: fx.Graph, sources: Collection[fx.Node], without: Collection[fx.Node] = ()
) -> list[fx.Node]:
    """Return what descends from nodes, in the order of the graph, but not through those of ``without``."""
    found = set(sources)
    behind = []
    for node in graph.nodes:
        if node not in found and node not in without and not found.isdisjoint(node.all_input_nodes):
            found.add(node)
            behind.append(node)
    return behind
