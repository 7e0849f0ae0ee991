"""Which places of a plan's values stay as they are when IDs are appended to a bag: those of a causal encoder do.

For each number of IDs before, this module follows which numbers of a row are the same whatever is appended. A step
whose numbers at the places of these IDs are the same, or say nothing, computes those of the new ones alone, if what
others read of the old ones is kept.

Shape letters: L numbers of IDs before, some of 0 to S - 1; W numbers of a row of a value; G, M, N, K loops of a form.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from export.lower.bags import IdsSpace, Length, Lookup, OfIds, Sequence
from export.lower.formed import Broadcast, Contract, Interleave, Operand
from export.lower.kinds import Operands, SequenceOrder
from export.lower.padding.masks import Masks, indices
from export.lower.padding.places import MOST_NUMBERS, FirstPlaces, Reading, most_numbers_of
from export.lower.values import Elementwise, Input, Join, Linear, Take, Value, View, Weight

#: For so many numbers of IDs before a reading looks at most.
_MOST_LENGTHS = 32


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How a plan goes on where IDs are appended to the bags of a feature.

    Attributes:
        length: The number of the bags' IDs.
        size: S; bags of as many IDs, or more, are computed from the beginning.
        every: The first new place is a multiple of it.
        loops: By the value, the bit of the loop of its form that begins at the first new place; 0 where numbers are
            computed by places.
        kept: Values whose numbers at old places are read again.
    """

    length: Length
    size: int
    every: int
    loops: Mapping[Value, int]
    kept: frozenset[Value]


def _is_in_order(value: Sequence) -> bool:
    """Return whether fewer than S IDs keep their places when others are appended."""
    return value.order is not SequenceOrder.BACKWARDS and value.computed is None


def growth_of(
    values: Several[Value],
    outputs: Several[Value],
    first: Mapping[Value, FirstPlaces],
    fused: Mapping[Value, Value],
) -> Growth | None:
    """Return how a plan goes on where IDs are appended; None if it begins from the beginning.

    Args:
        values: What is computed, each behind what it is computed of.
        outputs: Those that are read as a whole.
        first: Those that are computed for the first places alone.
        fused: By the value that a step computes, the one before it that the same step computes.
    """
    found: Growth | None = None
    for value in values:
        if not isinstance(value, Sequence) or not _is_in_order(value):
            continue
        length = Length(dims=(), space=value.space, dtype=torch.int64, feature=value.slot.feature)
        one = _growth(values, outputs, first, fused, Masks(length, value.dims[0]))
        if one is not None and (found is None or len(one.loops) > len(found.loops)):
            found = one
    # Without a layer or a sum over places that need not be computed again, nothing is gained.
    is_worth = found is not None and any(isinstance(value, (Linear, Contract)) for value in found.loops)
    return found if is_worth else None


def _growth(
    values: Several[Value],
    outputs: Several[Value],
    first: Mapping[Value, FirstPlaces],
    fused: Mapping[Value, Value],
    masks: Masks,
) -> Growth | None:
    size = masks.size
    every = -(-size // _MOST_LENGTHS)
    if size < 2 or size * max(map(most_numbers_of, values)) > MOST_NUMBERS:
        return None
    settled = _Settled(masks, torch.arange(0, size, every))
    same = _Same(settled)
    needed = Reading.needed(values, outputs, settled)
    loops: dict[Value, int] = {}
    for value in values:
        if value in first and first[value].size == size and not isinstance(value.space, IdsSpace):
            is_same = same.of(value) | ~needed[value] if value in needed else same.of(value)
            bit = _loop_of(value, first[value], is_same, settled)
            if bit is not None:
                loops[value] = bit
    while loops:
        for last, before in fused.items():
            if last not in loops or before not in loops:
                loops.pop(last, None)
                loops.pop(before, None)
        kept = _kept(values, outputs, settled, loops, first)
        # What is read again must be the same in every number: those that say nothing may be none. Nor may zeros be
        # written over it.
        refused = {
            value
            for value in kept
            if first[value].fills or _loop_of(value, first[value], same.of(value), settled) != loops[value]
        }
        if not refused:
            return Growth(length=masks.length, size=size, every=every, loops=loops, kept=kept)
        for value in refused:
            del loops[value]
    return None


def _loop_of(value: Value, first: FirstPlaces, same: Tensor, settled: _Settled) -> int | None:
    """Return the bit of the loop that can begin at the new places, 0 for numbers by places; None if none can."""
    if not isinstance(value, (Broadcast, Contract)):
        of_place = first.index * settled.size if first.are_pairs else first.index
        is_run = isinstance(value, Elementwise) and value.kind.takes is Operands.SHARES
        # The numbers of a run are computed together.
        if is_run and of_place < value.width // max(value.count, 1):
            return None
        return 0 if bool((same | ~settled.old(value.width, of_place)).all()) else None
    sizes = value.sizes[:3] if isinstance(value, Contract) else value.sizes
    at_loops = indices(sizes, value.strides[: len(sizes)])
    for at in range(len(sizes)):
        if not first.index >> at & 1:
            continue
        if bool((same[:, at_loops] | ~settled.old_turns(sizes, at)).all()):
            return 1 << at
    return None


def _kept(
    values: Several[Value],
    outputs: Several[Value],
    settled: _Settled,
    loops: Mapping[Value, int],
    first: Mapping[Value, FirstPlaces],
) -> frozenset[Value]:
    """Return whose numbers at old places are read again."""
    fresh = _Fresh(settled, loops, first)
    for value in values:
        if isinstance(value.space, IdsSpace):
            # It is computed for all IDs.
            for source in value.sources:
                if not isinstance(source.space, IdsSpace):
                    fresh.keep(source, torch.ones(settled.num_lengths, source.width, dtype=torch.bool))
            continue
        if isinstance(value, (View, Join, Weight)):
            continue
        if any(map(fresh.stale, value.sources)):
            for source, read in settled.read_of(value, fresh.computed(value)).items():
                fresh.keep(source, read)
    for value in outputs:
        fresh.keep(value, torch.ones(settled.num_lengths, value.width, dtype=torch.bool))
    return frozenset(fresh.kept)


class _Settled:
    """What is known of values, whatever number of IDs is appended; as ``Masks``."""

    def __init__(self, masks: Masks, before: Tensor) -> None:
        self._masks, self._before = masks, before
        self._known: dict[Value, Tensor | None] = {}
        self.size, self.length, self.num_lengths = masks.size, masks.length, len(before)

    def old(self, width: int, of_place: int) -> Tensor:
        """Return which numbers lie at places of IDs before, ``[L, W]``, if a place has so many."""
        return torch.arange(width) // of_place % self.size < self._before.unsqueeze(1)

    def old_turns(self, sizes: Several[int], at: int) -> Tensor:
        """Return which turns of a loop are those of old places, ``[L, 1 ... turns ... 1]``."""
        old = self.old(sizes[at], sizes[at] // self.size)
        return old.view(self.num_lengths, *[1] * at, sizes[at], *[1] * (len(sizes) - at - 1))

    def of(self, value: Value) -> Tensor | None:
        """Return the numbers of a value that each longer bag has too, ``[L, W]``; NaN for others."""
        if value not in self._known:
            known = self._masks.of(value)
            if known is not None:
                longest = known.flip(0)
                least, most = longest.cummin(0).values.flip(0), longest.cummax(0).values.flip(0)
                known = torch.where((least == most) & ~least.isnan(), known, torch.nan)[self._before]
            self._known[value] = known
        return self._known[value]

    def zeros_of(self, operand: Operand, sizes: Several[int], strides: Several[int]) -> Tensor:
        """Return which numbers that loops read of an operand are zeros, ``[L, *sizes]``."""
        known = self.of(operand.value)
        at = operand.offset + indices(sizes, strides)
        return torch.zeros(self.num_lengths, *sizes, dtype=torch.bool) if known is None else known[:, at] == 0

    def read_of(self, value: Value, computed: Tensor) -> dict[Value, Tensor]:
        """Return which numbers a step reads to compute some of its own."""
        return Reading.of_step(value, computed, self)


class _Same:
    """Which numbers of values stay the same, ``[L, W]``."""

    def __init__(self, settled: _Settled) -> None:
        self._settled, self._num_lengths = settled, settled.num_lengths
        self._found: dict[Value, Tensor] = {}

    def of(self, value: Value) -> Tensor:
        """Return them."""
        if value not in self._found:
            found = self._find(value)
            known = self._settled.of(value)
            self._found[value] = found if known is None else found | ~known.isnan()
        return self._found[value]

    def _all(self, value: Value, is_same: bool) -> Tensor:
        return torch.full((self._num_lengths, value.width), is_same)

    def _find(self, value: Value) -> Tensor:
        feature = self._settled.length.feature
        if isinstance(value, (Weight, Input)):
            return self._all(value, True)
        if isinstance(value, Lookup):
            reads = any(slot.feature == feature for slot in value.slots)
            return self._all(value, value.computed is None and not reads)
        if isinstance(value, Length):
            return self._all(value, value.feature != feature)
        if isinstance(value, Sequence):
            if not _is_in_order(value):
                return self._all(value, False)
            if value.slot.feature != feature:
                return self._all(value, True)
            return self._settled.old(value.width, value.dims[-1])
        if isinstance(value, View):
            return self.of(value.source)[:, value.offset : value.offset + value.width]
        if isinstance(value, Join):
            return torch.cat(
                [self.of(one.value)[:, one.offset : one.offset + one.width] for one in value.parts], 1
            )
        if isinstance(value, Linear):
            of_vector = (
                self.of(value.source).view(self._num_lengths, value.width // value.dims[-1], -1).all(-1)
            )
            return of_vector.repeat_interleave(value.dims[-1], 1)
        if isinstance(value, Elementwise):
            return self._elementwise(value)
        if isinstance(value, Interleave):
            found = self._all(value, True)
            for part in value.parts:
                found[:, part.offset + indices(part.sizes, part.strides)] = self._read(
                    part.operand, part.sizes
                )
            return found
        if isinstance(value, Broadcast):
            both = self._read(value.operands[0], value.sizes) & self._read(value.operands[-1], value.sizes)
            found = self._all(value, True)
            found[:, indices(value.sizes, value.strides)] = both
            return found
        if isinstance(value, Contract):
            return self._contract(value)
        if isinstance(value, Take):
            return self._take(value)
        # What is made of all IDs of a bag is another thing with each of them.
        is_known = (
            bool(value.sources) and not isinstance(value, OfIds) and not isinstance(value.space, IdsSpace)
        )
        return self._all(value, is_known and all(bool(self.of(one).all()) for one in value.sources))

    def _read(self, operand: Operand, sizes: Several[int]) -> Tensor:
        return self.of(operand.value)[:, operand.offset + indices(sizes, operand.strides)]

    def _elementwise(self, value: Elementwise) -> Tensor:
        takes, count = value.kind.takes, value.count
        first, *others = [self.of(one) for one in value.operands]
        if takes is Operands.SHARES:
            of_run = first.view(self._num_lengths, max(count, 1), -1).all(-1)
            return of_run.repeat_interleave(value.width // max(count, 1), 1)
        if takes is Operands.RUNS:
            return first.view(self._num_lengths, -1, count).all(-1)
        if takes is Operands.LAYERS:
            run = value.operands[1].width
            is_same = bool(others[0].all()) and bool(others[1].all())
            return first.view(self._num_lengths, -1, run).all(-1).repeat_interleave(run, 1) & is_same
        if takes is Operands.REPEATED:
            return first.repeat_interleave(count, 1) & others[0]
        if takes in (Operands.ONE, Operands.THREE):
            for other in others:
                first = first & other
            return first
        return self._all(value, all(bool(one.all()) for one in (first, *others)))

    def _contract(self, value: Contract) -> Tensor:
        a, b = value.operands
        g, m, n, k = value.sizes
        a_sizes, a_strides = (g, m, k), (*a.strides[:2], a.strides[3])
        b_sizes, b_strides = (g, n, k), (b.strides[0], b.strides[2], b.strides[3])
        a_same = self.of(a.value)[:, a.offset + indices(a_sizes, a_strides)]
        b_same = self.of(b.value)[:, b.offset + indices(b_sizes, b_strides)]
        a_zero = self._settled.zeros_of(a, a_sizes, a_strides)
        b_zero = self._settled.zeros_of(b, b_sizes, b_strides)
        # A product moves where an operand does and the other one is not zero.
        moves = torch.matmul((~a_same).float(), (~b_zero).float().transpose(-1, -2))
        moves += torch.matmul((~a_zero).float(), (~b_same).float().transpose(-1, -2))
        found = self._all(value, True)
        found[:, indices(value.sizes[:3], value.strides[:3])] = moves == 0
        return found

    def _take(self, value: Take) -> Tensor:
        numbers = self._settled.of(value.numbers)
        num_vectors = value.vectors.width // value.each
        if numbers is None or bool(numbers.isnan().any()):
            is_same = bool(self.of(value.numbers).all()) and bool(self.of(value.vectors).all())
            return self._all(value, is_same)
        which = functional.one_hot(numbers.long().clamp(0, num_vectors - 1), num_vectors).float()
        moves = (~self.of(value.vectors)).view(self._num_lengths, num_vectors, value.each).float()
        return (torch.matmul(which, moves) == 0).flatten(1)


class _Fresh:
    """Which numbers of values are right after the new places were computed, ``[L, W]``."""

    def __init__(
        self, settled: _Settled, loops: Mapping[Value, int], first: Mapping[Value, FirstPlaces]
    ) -> None:
        self._settled, self._loops, self._first = settled, loops, first
        self._num_lengths = settled.num_lengths
        #: Values whose numbers at old places are there.
        self.kept: set[Value] = set()

    def keep(self, value: Value, read: Tensor) -> None:
        """Keep the values of which numbers are read that are not right."""
        stale = self.stale(value)
        if stale and bool((read & ~self.of(value)).any()):
            self.kept |= stale

    def computed(self, value: Value) -> Tensor:
        """Return which numbers of a value its step computes."""
        everything = torch.ones(self._num_lengths, value.width, dtype=torch.bool)
        if value not in self._loops:
            return everything
        if not isinstance(value, (Broadcast, Contract)):
            first = self._first[value]
            of_place = first.index * self._settled.size if first.are_pairs else first.index
            return ~self._settled.old(value.width, of_place)
        sizes = value.sizes[:3] if isinstance(value, Contract) else value.sizes
        old = self._settled.old_turns(sizes, self._loops[value].bit_length() - 1)
        everything[:, indices(sizes, value.strides[: len(sizes)])] = ~old.expand(-1, *sizes)
        return everything

    def of(self, value: Value) -> Tensor:
        """Return the numbers that are right."""
        if value in self._loops and value not in self.kept:
            return self.computed(value)
        found = torch.ones(self._num_lengths, value.width, dtype=torch.bool)
        if isinstance(value, View):
            return self.of(value.source)[:, value.offset : value.offset + value.width]
        if isinstance(value, Join):
            return torch.cat(
                [self.of(one.value)[:, one.offset : one.offset + one.width] for one in value.parts], 1
            )
        if isinstance(value, Interleave):
            for part in value.parts:
                of_part = part.operand
                at = of_part.offset + indices(part.sizes, of_part.strides)
                found[:, part.offset + indices(part.sizes, part.strides)] = self.of(of_part.value)[:, at]
        return found

    def stale(self, value: Value) -> set[Value]:
        """Return the values of which a value's stale numbers are."""
        if value in self._loops and value not in self.kept:
            return {value}
        if isinstance(value, (View, Join, Interleave)):
            return {one for source in value.sources for one in self.stale(source)}
        return set()
