"""What a plan consists of: ``cpp_client/ops/program/program.h`` reads its numbers.

Shape letters: B rows, S places of a bag.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from export.lower.bags import ComputedIds, Slot
from export.lower.kinds import BufferKind
from export.lower.values import Columns, Value, Weight

#: The versions of plans: with steps for the first places, with forms or features, and with neither.
VERSION, WITHOUT_PLACES, WITHOUT_FORMS = 5, 4, 3
# Rows of scratch memory begin on cache lines, and lie no power of two apart.
_LINE = 16


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


@dataclass(frozen=True)
class Layer:
    """The weights of a linear layer, by path, and the columns of the weight that it takes."""

    weight: str
    bias: str | None
    columns: Columns = ()


#: What a plan takes as a constant: the rows of all tables, a lookup's slots, the weights of a layer or dense weights.
Constant = str | tuple[Slot, ...] | Layer | Weight
ROWS = "rows"


@dataclass
class Buffer:
    """Where numbers of a plan lie.

    Attributes:
        kind: What it is.
        index: Which input, constant or output it is; of scratch memory, where it begins.
        width: Numbers of a row.
    """

    kind: BufferKind
    index: int
    width: int


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


def place_scratch(buffers: Sequence[Buffer], steps: Sequence[Sequence[int]], kept: Container[int]) -> None:
    """Give scratch buffers memory: two share it if no step needs both.

    Args:
        buffers: The buffers of a plan.
        steps: Those that each uses.
        kept: Those that share theirs with none.
    """
    used: dict[int, tuple[int, int]] = {}
    for at, step in enumerate(steps):
        for buffer in step:
            used[buffer] = (used.get(buffer, (at, at))[0], at)
    used |= {buffer: (0, len(steps)) for buffer in used if buffer in kept}
    placed: list[int] = []
    for i, one in enumerate(buffers):
        if one.kind not in (BufferKind.SCRATCH, BufferKind.IDS) or i not in used:
            continue
        # Behind those that are used at the same time and would overlap, one after the other.
        taken = sorted(
            (buffers[j].index, buffers[j].index + _scratch_width(buffers[j].width))
            for j in placed
            if buffers[j].kind is one.kind and used[i][0] <= used[j][1] and used[j][0] <= used[i][1]
        )
        at = 0
        for begin, end in taken:
            if begin < at + _scratch_width(one.width):
                at = max(at, end)
        one.index = at
        placed.append(i)


def _scratch_width(width: int) -> int:
    return (width + _LINE - 1) // _LINE * _LINE + _LINE
