"""Values that forms compute: loops within each other over the operands and the result.

Shape letters: B rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from export.lower.kinds import ElementwiseKind
from export.lower.values import Value


@dataclass(frozen=True, kw_only=True, eq=False)
class Operand:
    """What a form reads of a value: from ``offset`` on, by the strides of its loops."""

    value: Value
    offset: int
    strides: tuple[int, ...]


@dataclass(eq=False, kw_only=True)
class Formed(Value):
    """Numbers computed by a form: loops within each other over the operands and the result.

    Attributes:
        sizes: Of the loops.
        strides: Of the result.
        operands: One or two.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    operands: list[Operand]

    @property
    def sources(self) -> list[Value]:
        """The values that it is computed of."""
        return [operand.value for operand in self.operands]


@dataclass(eq=False, kw_only=True)
class Contract(Formed):
    """Sums of products: the loops are matrices, rows, columns, and what is summed."""


@dataclass(eq=False, kw_only=True)
class Broadcast(Formed):
    """Two operands number by number, or a copy of one; ``factor`` as the kind takes it."""

    kind: ElementwiseKind
    factor: float = 0.0


@dataclass(frozen=True, eq=False)
class Written:
    """What a form writes of a value: from ``offset`` of the result on, by the strides of its loops."""

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    operand: Operand


@dataclass(eq=False, kw_only=True)
class Interleave(Value):
    """Values whose numbers lie among each other, as those of a dimension that is not the first.

    Attributes:
        at: The dimension within a row at which they are joined.
        parts: The values, in order.
    """

    at: int
    parts: tuple[Written, ...]

    @property
    def sources(self) -> list[Value]:
        """The values that it is computed of."""
        return [part.operand.value for part in self.parts]
