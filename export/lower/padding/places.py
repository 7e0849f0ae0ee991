"""Which steps need not compute the places behind a bag's IDs, because nothing reads what they hold there.

A model pads bags to S places and masks what is behind the IDs. For each number of IDs below S this module follows what
masks make of it, and from the outputs back which numbers are read. A step of whose numbers those behind the IDs are
never read, or are zeros, computes the first places alone.

Shape letters: L numbers of IDs, 0 to S - 1; W numbers of a row of a value; G, M, N, K loops of a form.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from export.lower.bags import FromIds, IdsSpace, Length, Sequence
from export.lower.formed import Broadcast, Contract, Interleave, Operand
from export.lower.kinds import ElementwiseKind, Operands
from export.lower.padding.masks import Masks, indices
from export.lower.strided import NUM_LOOPS, contiguous
from export.lower.values import Elementwise, Join, Linear, Take, Value, View, Weight

#: A number for each of L and W; more are not looked at.
MOST_NUMBERS = 1 << 25
#: Whose numbers each depend on those at the same place alone.
_ONE_BY_ONE = (Operands.ONE, Operands.REPEATED, Operands.THREE)


@dataclass(frozen=True)
class FirstPlaces:
    """That a step computes the first places of each row alone.

    Attributes:
        length: How many: the number of IDs, or that and one where there is none.
        size: S.
        index: Of a form the bits of the loops that go over places; of others the numbers of a place.
        are_pairs: Whether it computes pairs of places.
        fills: Whether what is behind them is zeros.
        split: The form whose loops ``index`` means, if it is not the value itself.
    """

    length: Value
    size: int
    index: int
    are_pairs: bool = False
    fills: bool = False
    split: Broadcast | None = None


def first_places(values: Several[Value], outputs: Several[Value]) -> dict[Value, FirstPlaces]:
    """Return which of a plan's values are computed for the first places alone.

    Args:
        values: What is computed, each behind what it is computed of.
        outputs: Those that are read as a whole.
    """
    lengths = {
        (one.slot.feature, one.space): Length(
            dims=(), space=one.space, dtype=torch.int64, feature=one.slot.feature
        )
        for one in values
        if isinstance(one, Sequence) and one.computed is None
    }
    lengths |= {(one.feature, one.space): one for one in values if isinstance(one, Length)}
    sizes = {
        value.dims[0] for value in values if isinstance(value, (Sequence, FromIds)) and value.dims[0] > 1
    }
    widest = max(map(most_numbers_of, values))
    # What is computed of weights alone is computed once, as a whole.
    constant: set[Value] = set()
    for value in values:
        if isinstance(value, Weight) or (value.sources and constant.issuperset(value.sources)):
            constant.add(value)
    computed = [value for value in values if value not in constant]
    readings: list[dict[Value, FirstPlaces]] = []
    for length, size in product(lengths.values(), sorted(sizes)):
        if size * widest <= MOST_NUMBERS:
            masks = Masks(length, size)
            # Some models read the first place of a bag without IDs.
            readings += [Reading(computed, outputs, masks, least).run() for least in (0, 1)]
    found: dict[Value, FirstPlaces] = {}
    for reading in sorted(readings, key=lambda one: -len(one)):
        # What a reading leaves out holds for the steps that it bounds: another may not bound one of them.
        if found.keys().isdisjoint(reading):
            found |= reading
    for value, places in found.items():
        if isinstance(value, Broadcast) and places.split is not None:
            value.sizes, value.strides = places.split.sizes, places.split.strides
            value.operands = places.split.operands
    return found


def most_numbers_of(value: Value) -> int:
    """Return for how many numbers of a row a reading looks at a value at once."""
    if not isinstance(value, Contract):
        return value.width
    num_matrices, rows, columns, summed = value.sizes
    return num_matrices * max(rows * columns, rows * summed, columns * summed)


@dataclass(frozen=True)
class _Turns:
    """Turns of loops: those that are computed, ``[L, *sizes]``, and which loops end where the IDs do."""

    loops: Tensor
    bits: int
    fills: bool


class Known(Protocol):
    """What is known of values by the number of IDs of a bag: ``Masks``, or some of it."""

    length: Length
    size: int
    #: L.
    num_lengths: int

    def of(self, value: Value) -> Tensor | None:
        """Return the numbers of a value, ``[L, W]``, as ``Masks.of``."""


class Reading:
    """Follows which numbers are read, from the outputs back to the inputs."""

    def __init__(self, values: Several[Value], outputs: Several[Value], masks: Known, least: int) -> None:
        self._values, self._masks, self._size = values, masks, masks.size
        self._num_lengths = masks.num_lengths
        self._has_padding = least < masks.size
        self._num_places = torch.arange(masks.size).clamp(min=least).unsqueeze(1)
        self._length: Value = masks.length
        if least > 0:
            self._length = Elementwise(
                dims=(), space=self._length.space, kind=ElementwiseKind.AT_LEAST, operands=[self._length],
                factor=float(least),
            )  # fmt: skip
        # Whether zero times a number needs the number: it does where that may be none.
        self._is_of_zeros = False
        self._read: dict[Value, Tensor] = {}
        self._found: dict[Value, FirstPlaces] = {}
        for value in outputs:
            self._mark_whole(value)

    @classmethod
    def of_step(cls, value: Value, computed: Tensor, known: Known) -> dict[Value, Tensor]:
        """Return which numbers of others a step reads to compute some of its own, ``[L, W]``, whatever is padded."""
        made = cls([value], [], known, known.size)
        made._read_for(value, computed)
        return made._read

    @classmethod
    def needed(cls, values: Several[Value], outputs: Several[Value], known: Known) -> dict[Value, Tensor]:
        """Return which numbers of values say what the outputs are, ``[L, W]``, whatever is padded."""
        made = cls(values, outputs, known, known.size)
        made._is_of_zeros = True
        found: dict[Value, Tensor] = {}
        for value in reversed(values):
            if value in made._read:
                found[value] = made._read[value]
                made._read_for(value, found[value])
        return found

    def run(self) -> dict[Value, FirstPlaces]:
        """Return the values that are computed for the first places alone."""
        for value in reversed(self._values):
            read = self._read.pop(value, None)
            if read is None or isinstance(value.space, IdsSpace):
                continue
            self._read_for(value, read)
        # Masks alone are not worth it.
        is_worth = any(isinstance(value, (Linear, Contract)) for value in self._found)
        return self._found if is_worth else {}

    def _read_for(self, value: Value, read: Tensor) -> None:
        """Mark what is read to compute some numbers of a value."""
        if isinstance(value, View):
            self._mark(value.source, _placed(read, value.offset, value.source.width))
        elif isinstance(value, Join):
            column = 0
            for part in value.parts:
                of_part = read[:, column : column + part.width]
                self._mark(part.value, _placed(of_part, part.offset, part.value.width))
                column += part.width
        elif isinstance(value, Interleave):
            for written in value.parts:
                of = written.operand
                loops = read[:, written.offset + indices(written.sizes, written.strides)]
                self._mark_loops(of, written.sizes, loops)
        elif isinstance(value, Linear):
            self._linear(value, read)
        elif isinstance(value, Elementwise):
            self._elementwise(value, read)
        elif isinstance(value, Broadcast):
            self._broadcast(value, read)
        elif isinstance(value, Contract):
            self._contract(value, read)
        elif isinstance(value, Take):
            self._take(value, read)
        else:
            self._mark_all(value)

    def _mark(self, value: Value, read: Tensor) -> None:
        self._read[value] = self._read[value] | read if value in self._read else read

    def _mark_all(self, value: Value) -> None:
        for source in value.sources:
            self._mark_whole(source)

    def _mark_whole(self, value: Value) -> None:
        self._mark(value, torch.ones(self._num_lengths, value.width, dtype=torch.bool))

    def _mark_loops(self, of: Operand, sizes: Several[int], read: Tensor) -> None:
        """Mark what loops read of an operand, ``[L, *sizes]``."""
        at = (of.offset + indices(sizes, of.strides)).reshape(-1)
        counted = torch.zeros(self._num_lengths, of.value.width)
        counted.index_add_(1, at, read.reshape(self._num_lengths, -1).float())
        self._mark(of.value, counted > 0)

    def _take(self, value: Take, read: Tensor) -> None:
        numbers = self._masks.of(value.numbers)
        if numbers is None or bool(numbers.isnan().any()):
            self._mark_all(value)
            return
        num_vectors = value.vectors.width // value.each
        which = functional.one_hot(numbers.long().clamp(0, num_vectors - 1), num_vectors).bool()
        of_vectors = read.view(self._num_lengths, -1, 1, value.each) & which.unsqueeze(-1)
        self._mark(value.vectors, of_vectors.any(1).flatten(1))
        self._mark_whole(value.numbers)

    def _linear(self, value: Linear, read: Tensor) -> None:
        out, num_vectors = value.dims[-1], value.width // value.dims[-1]
        of_vector = read.view(self._num_lengths, num_vectors, out).any(-1)
        per_place, rest = divmod(num_vectors, self._size)
        if self._has_padding and not rest and not (of_vector & self._behind(num_vectors, per_place)).any():
            self._found[value] = FirstPlaces(self._length, self._size, per_place * out)
        self._mark(value.source, of_vector.repeat_interleave(value.source.width // num_vectors, dim=1))

    def _elementwise(self, value: Elementwise, read: Tensor) -> None:
        # Numbers that are computed together.
        run = 1
        if value.kind.takes is Operands.SHARES:
            run = value.width // max(value.count, 1)
        elif value.kind.takes is Operands.LAYERS:
            run = value.operands[1].width
        elif value.kind.takes not in (*_ONE_BY_ONE, Operands.RUNS):
            self._mark_all(value)
            return
        computed = _whole(read, run)
        count = value.count if value.kind.takes is Operands.REPEATED else 1
        first = self._first(value, read, max(run, count))
        if first is not None:
            self._found[value] = first
            computed = computed & ~self._behind(value.width, first.index)
            if first.are_pairs:
                computed = computed & ~self._behind(value.width, first.index * self._size)
        for i, operand in enumerate(value.operands):
            if value.kind.takes is Operands.RUNS:
                self._mark(operand, computed.repeat_interleave(value.count, 1))
            elif operand.width == value.width:
                self._mark(operand, computed)
            elif i == 0 and operand.width * count == value.width:
                self._mark(operand, computed.view(self._num_lengths, -1, count).any(-1))
            else:
                self._mark_whole(operand)

    def _first(self, value: Elementwise, read: Tensor, run: int) -> FirstPlaces | None:
        """Return the places that are computed, of runs of numbers that are computed together or read one number."""
        found: FirstPlaces | None = None
        for at, dim in enumerate(value.dims if self._has_padding else ()):
            of_place = prod(value.dims[at + 1 :])
            if dim != self._size:
                continue
            is_within_run = of_place < run
            left = read
            if found is not None:
                # Only the dimension behind the other one makes pairs.
                if found.index != of_place * self._size:
                    return found
                left = read & ~self._behind(value.width, found.index)
            behind = self._behind(value.width, of_place)
            fills = bool((left & behind).any())
            if fills and not self._are_zeros(value, left & behind):
                continue
            if is_within_run:
                # What a run leaves out has no share.
                is_softmax = value.kind.takes is Operands.SHARES and (of_place, run) == (1, self._size)
                if not is_softmax or not self._are_zeros(value, _whole(left, run) & behind):
                    continue
            if found is None:
                found = FirstPlaces(self._length, self._size, of_place, fills=fills)
            else:
                return replace(found, index=of_place, are_pairs=True, fills=found.fills or fills)
        return found

    def _broadcast(self, value: Broadcast, read: Tensor) -> None:
        first, form = self._first_turns(value, value, read), value
        split = _split(value)
        if split is not None:
            more = self._first_turns(value, split, read)
            if more.bits.bit_count() > first.bits.bit_count():
                first, form = more, split
        if first.bits:
            self._found[value] = FirstPlaces(
                self._length, self._size, first.bits, fills=first.fills, split=None if form is value else form
            )
        loops = first.loops
        a, b = form.operands[0], form.operands[-1]
        if self._is_of_zeros and value.kind is ElementwiseKind.MULTIPLY:
            for one, other in ((a, b), (b, a)):
                known = self._masks.of(other.value)
                at = other.offset + indices(form.sizes, other.strides)
                self._mark_loops(one, form.sizes, loops if known is None else loops & (known[:, at] != 0))
            return
        self._mark_loops(a, form.sizes, loops)
        if value.kind is ElementwiseKind.SELECT:
            condition = self._masks.of(a.value)
            if condition is not None:
                loops = loops & (condition[:, a.offset + indices(form.sizes, a.strides)] != 0)
        if b is not a:
            self._mark_loops(b, form.sizes, loops)

    def _first_turns(self, value: Broadcast, form: Broadcast, read: Tensor) -> _Turns:
        """Return which loops of a form, the value's or what it is split into, need the first places alone."""
        at_loops = indices(form.sizes, form.strides)
        loops = read[:, at_loops]
        bits, fills = 0, False
        for at, size in enumerate(form.sizes):
            behind = self._behind_of_loop(form.sizes, at)
            if behind is None or size == 1:
                continue
            left = loops & behind
            has_more = bool(left.any())
            if has_more and not self._are_zeros(value, left, at_loops):
                continue
            bits, fills = bits | 1 << at, fills or has_more
            loops = loops & ~behind
        return _Turns(loops, bits, fills)

    def _contract(self, value: Contract, read: Tensor) -> None:
        sizes, bits = value.sizes[:3], 0
        loops = read[:, indices(sizes, value.strides[:3])]
        for at, size in enumerate(sizes):
            behind = self._behind_of_loop(sizes, at)
            if size > 1 and behind is not None and not (loops & behind).any():
                bits |= 1 << at
        a, b = value.operands
        # [L, G, M, K] and [L, G, N, K].
        a_sizes, b_sizes = (*sizes[:2], value.sizes[3]), (sizes[0], sizes[2], value.sizes[3])
        a_strides, b_strides = (*a.strides[:2], a.strides[3]), (b.strides[0], b.strides[2], b.strides[3])
        a_read = loops.any(3).unsqueeze(-1).expand(-1, *a_sizes)
        b_read = loops.any(2).unsqueeze(-1).expand(-1, *b_sizes)
        behind = self._behind_of_loop(a_sizes, 2)
        if behind is not None and (
            self._are_zeros(a.value, a_read & behind, a.offset + indices(a_sizes, a_strides))
            or self._are_zeros(b.value, b_read & behind, b.offset + indices(b_sizes, b_strides))
        ):
            bits |= 1 << 3
            a_read, b_read = a_read & ~behind, b_read & ~behind
        if bits:
            self._found[value] = FirstPlaces(self._length, self._size, bits)
        self._mark_loops(Operand(value=a.value, offset=a.offset, strides=a_strides), a_sizes, a_read)
        self._mark_loops(Operand(value=b.value, offset=b.offset, strides=b_strides), b_sizes, b_read)

    def _behind_of_loop(self, sizes: Several[int], at: int) -> Tensor | None:
        """Return which turns of a loop lie behind the IDs; None if it does not go over places."""
        of_place, rest = divmod(sizes[at], self._size)
        if rest or not of_place or not self._has_padding:
            return None
        behind = self._behind(sizes[at], of_place)
        return behind.view(self._num_lengths, *[1] * at, sizes[at], *[1] * (len(sizes) - at - 1))

    def _behind(self, width: int, of_place: int) -> Tensor:
        """Return which numbers lie behind the IDs, ``[L, W]``, if a place has so many."""
        return torch.arange(width) // of_place % self._size >= self._num_places

    def _are_zeros(self, value: Value, where: Tensor, at: Tensor | slice = slice(None)) -> bool:
        """Return whether those of a value's numbers are zeros that a mask over ``at`` takes."""
        known = self._masks.of(value)
        # NaN is no zero.
        return known is not None and not bool((where & (known[:, at] != 0)).any())


def _split(value: Broadcast) -> Broadcast | None:
    """Return a form with a loop for each dimension; None if it has them, or has no loops for them."""
    kept: list[tuple[int, list[int]]] = []
    steps = [value.strides, *(operand.strides for operand in value.operands)]
    for at, size in enumerate(value.sizes):
        # From the outside: what a turn of the loop over a dimension steps over.
        over = [1]
        for stride, dim in zip(contiguous(value.dims), value.dims, strict=True):
            if dim > 1 and stride.stride >= value.strides[at] and stride.stride < size * value.strides[at]:
                over.append(dim)
        if size > 1 and prod(over) != size:
            return None
        left = size
        for dim in over[1:]:
            left //= dim
            kept.append((dim, [of[at] * left for of in steps]))
    if len(kept) > NUM_LOOPS:
        return None
    kept = [(1, [0] * len(steps))] * (NUM_LOOPS - len(kept)) + kept
    strides = [tuple(one[1][i] for one in kept) for i in range(len(steps))]
    return replace(
        value,
        sizes=tuple(size for size, _ in kept),
        strides=strides[0],
        operands=[
            replace(operand, strides=of) for operand, of in zip(value.operands, strides[1:], strict=True)
        ],
    )


def _whole(read: Tensor, run: int) -> Tensor:
    """Return a mask with all of the runs of which it has a part."""
    of_run = read.view(len(read), -1, run).any(-1)
    return of_run.repeat_interleave(run, 1)


def _placed(read: Tensor, offset: int, width: int) -> Tensor:
    """Return a mask of all numbers for one of some that follow each other."""
    found = torch.zeros(len(read), width, dtype=torch.bool)
    found[:, offset : offset + read.shape[1]] = read
    return found
