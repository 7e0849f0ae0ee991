"""What a call of a converted plain model follows: its graph, and what of it is computed.

Shape letters: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import fx
from torch.nn import functional

from export.graph.passes import is_pure
from export.graph.tracing.recorder import Recorder
from export.plain.features import Inputs
from export.plain.lookups import Table
from export.plain.moved import Moved
from export.plain.plan import COMPUTED, Plan, reduces
from export.plain.traced import PlainGraph


class Recipe:
    """What a call of a plain model follows. Copies of the model share it.

    Attributes:
        plan_of: By node the plan of a lookup's table, and the lookup.
        checked: By node the table that a lookup in dense rows reads, whose IDs follow from requests, and the lookup.
        shapes: By node the shape of a tensor, with -1 for a size that follows from B.
        dtypes: By node its type.
        needed: The nodes that are computed.
    """

    def __init__(
        self,
        plain: PlainGraph,
        inputs: Inputs,
        plans: Sequence[Plan],
        moved: Mapping[fx.Node, Moved],
        tables: Sequence[Table],
    ) -> None:
        self.plain, self.graph, self.inputs, self.moved = plain, plain.graph, inputs, moved
        self.given = plain.given
        # weight[ids] takes IDs that count from the end.
        self.checked = {
            lookup.node: (table, lookup)
            for table in tables
            if table.stays_dense and table.is_of_inputs
            for lookup in table.lookups
            if lookup.node.op == "call_module" or lookup.node.target is functional.embedding
        }
        self.plan_of = {lookup.node: (plan, lookup) for plan in plans for lookup in plan.table.lookups}
        self.shapes, self.dtypes = shapes_of(plain)
        self.needed = self._needed_nodes(plain)

    def __deepcopy__(self, _: object) -> Recipe:
        return self

    def _needed_nodes(self, plain: PlainGraph) -> set[fx.Node]:
        """Return the nodes that are computed: not those that only lead to rows of features."""
        needed: set[fx.Node] = set()
        waiting = [
            node for node in self.graph.nodes if node.op != "placeholder" and not is_pure(plain.root, node)
        ]
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
