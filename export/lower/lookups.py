"""What lookups read: slots of tables, and the IDs of a batch.

Shape letters: B rows, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import fx

from export.lower.values import Value


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Columns of a lookup: a feature in the stored rows of a table.

    Attributes:
        offset: Where the rows begin, in bytes.
        num_rows: Their number.
        type_code: FBGEMM's code for their type.
        dim: The columns, padded as the rows are.
        column: Where they begin in the lookup's output.
        modulus: IDs are taken modulo this number, mixed before if it is negative; 0 leaves them as they are.
        last_id: IDs above it, and negative ones, read this row; -1 for none.
        feature: The position of the feature among those of the batch.
    """

    offset: int
    num_rows: int
    type_code: int
    dim: int
    column: int
    modulus: int
    last_id: int
    feature: int


@dataclass(frozen=True, kw_only=True)
class ComputedIds:
    """IDs that the model computes: nodes of the graph, as those of a batch.

    Attributes:
        lengths: ``[num_features * B]``.
        values: ``[N]``.
        weights: ``[N]``; None if the IDs have none.
    """

    lengths: fx.Node
    values: fx.Node
    weights: fx.Node | None
    num_features: int

    @property
    def nodes(self) -> list[fx.Node]:
        """Those that are no inputs of the graph."""
        nodes = [self.lengths, self.values, *([] if self.weights is None else [self.weights])]
        return [node for node in nodes if node.op != "placeholder"]


@dataclass(eq=False, kw_only=True)
class Lookup(Value):
    """Pooled rows of tables, side by side.

    Attributes:
        slots: What is looked up.
        pooling: FBGEMM's code.
        is_weighted: Whether each ID comes with a weight.
        computed: The IDs, if they are not the request's.
    """

    slots: tuple[Slot, ...]
    pooling: int
    is_weighted: bool
    computed: ComputedIds | None = None


@dataclass(frozen=True, kw_only=True)
class LookupInputs:
    """The tensors that hold a batch's IDs, and its number of features."""

    lengths: int
    values: int
    weights: int | None
    num_features: int


@dataclass(frozen=True, kw_only=True)
class PlanInputs:
    """What is there when a plan begins.

    Attributes:
        places: By value, tensors: their places in the program.
        ids: Where the IDs of the request are; None without any.
        computed: Where those are that the model computes.
        counted: The place of an input that tells the number of rows, and how many of its numbers belong to one; None
            if there is none.
    """

    places: Mapping[Value, int]
    ids: LookupInputs | None
    computed: Mapping[ComputedIds, LookupInputs]
    counted: tuple[int, int] | None
