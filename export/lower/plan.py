"""What a plan consists of: ``cpp_client/ops/program/program.h`` reads its numbers.

Shape letters: B rows, S places of a bag.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from torch import Tensor

from export.lower.lookups import Slot
from export.lower.values import Columns, Value, Weight

#: The versions of plans: with steps for the first places, with forms or features, and with neither.
VERSION, WITHOUT_PLACES, WITHOUT_FORMS = 5, 4, 3


@dataclass(frozen=True)
class Layer:
    """The weights of a linear layer, by path, and the columns of the weight that it takes."""

    weight: str
    bias: str | None
    columns: Columns = ()


#: What a plan takes as a constant: the rows of all tables, a lookup's slots, the weights of a layer or dense weights.
Constant = str | tuple[Slot, ...] | Layer | Weight
ROWS = "rows"


@dataclass(frozen=True, kw_only=True)
class GrowingPlan:
    """How a plan goes on where IDs are appended to the bags of a feature.

    Attributes:
        feature: Its position.
        size: S; bags of as many IDs, or more, are computed from the beginning.
        every: The first new place is a multiple of it.
        buffers: Those whose rows are kept, and how many numbers belong to a place.
        steps: Those that begin at the first new place, and the bit of the loop of their form that does; 0 without form.
    """

    feature: int
    size: int
    every: int
    buffers: list[tuple[int, int]]
    steps: list[tuple[int, int]]


@dataclass(kw_only=True)
class Plan:
    """A plan.

    Attributes:
        numbers: As ``cpp_client/ops/program/program.h`` reads them.
        inputs: The tensors that it takes, by their places in the program.
        constants: What it takes beside them.
        values: What it computes, in order.
        outputs: The values that it returns.
        rows_of: Which of its inputs tells the number of rows.
        per_row: How many of the numbers of that input belong to one row.
        growing: How it goes on where IDs are appended; None if it begins from the beginning.
    """

    numbers: Tensor
    inputs: list[int]
    constants: list[Constant]
    values: list[Value]
    outputs: list[Value]
    rows_of: int
    per_row: int
    growing: GrowingPlan | None = None

    @property
    def has_forms(self) -> bool:
        """Whether it has what earlier releases do not read."""
        return int(self.numbers[0]) != WITHOUT_FORMS

    @property
    def has_places(self) -> bool:
        """Whether it has steps for the first places alone."""
        return int(self.numbers[0]) == VERSION


def bits_of(factor: float) -> int:
    """Return the bits of a float, in the lower half."""
    (bits,) = struct.unpack("<I", struct.pack("<f", factor))
    return int(bits)
