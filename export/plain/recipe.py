"""What a call of a converted plain model follows: its graph, and what of it is computed.

Shape letters: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import fx

from export.graph.tracing.recorder import Recorder
from export.plain.features import Inputs
from export.plain.moved import Moved
from export.plain.plan import COMPUTED, Plan, reduces
from export.plain.traced import PlainGraph, writes


class Recipe:
    """What a call of a plain model follows. Copies of the model share it."""

    def __init__(
        self, plain: PlainGraph, inputs: Inputs, plans: Sequence[Plan], moved: Mapping[fx.Node, Moved]
    ) -> None:
        self.graph, self.inputs, self.moved = plain.graph, inputs, moved
        self.given = plain.given
        self.plan_of = {lookup.node: (plan, lookup) for plan in plans for lookup in plan.table.lookups}
        self.shapes, self.dtypes = shapes_of(plain)
        self.needed = self._needed_nodes()

    def __deepcopy__(self, _: object) -> Recipe:
        return self

    def _needed_nodes(self) -> set[fx.Node]:
        """Return the nodes that are computed: not those that only lead to rows of features."""
        needed: set[fx.Node] = set()
        waiting = [node for node in self.graph.nodes if node.op == "output" or writes(node)]
        while waiting:
            node = waiting.pop()
            if node in needed:
                continue
            needed.add(node)
            if node in self.plan_of:
                plan, lookup = self.plan_of[node]
                if plan.kind == COMPUTED or (reduces(plan, lookup) and lookup.padding_idx is not None):
                    waiting.append(lookup.ids)
                if lookup.per_id_weights is not None:
                    waiting.append(lookup.per_id_weights)
            elif node not in self.moved:
                waiting += node.all_input_nodes
        return needed


def shapes_of(plain: PlainGraph) -> tuple[dict[fx.Node, tuple[int, ...]], dict[fx.Node, torch.dtype]]:
    """Return the shape of each tensor of a graph, with -1 for a size that follows from B, and its type."""
    num_rows = plain.given.num_rows
    found = []
    for rows in (torch.arange(num_rows), torch.arange(num_rows + 1) % num_rows):
        recorder = Recorder(plain.root, plain.graph)
        with torch.no_grad():
            recorder.run({name: tensor[rows] for name, tensor in plain.given.tensors.items()})
        found.append(recorder.found)
    first, second = found
    shapes = {
        node: tuple(a if a == b else -1 for a, b in zip(one.shape, second[node].shape, strict=True))
        for node, one in first.items()
        if node in second and one.dim() == second[node].dim()
    }
    return shapes, {node: one.dtype for node, one in first.items()}
