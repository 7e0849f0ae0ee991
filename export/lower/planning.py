"""The steps of one space as a plan: what is computed where, and in which buffers.

``cpp_client/ops/program/program.h`` reads it.

Shape letters: B rows, V vectors.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import TypeVar

import torch

from export.lower.bags import (
    BagSum,
    Differences,
    FromIds,
    IdsSpace,
    Length,
    Lookup,
    OfIds,
    ReadIds,
    Sequence,
    Slot,
    ToIds,
)
from export.lower.formed import Broadcast, Contract, Formed, Interleave, Operand, Written
from export.lower.fusing import ACTIVATIONS, fuse
from export.lower.kinds import BufferKind, ElementwiseKind, StepKind
from export.lower.padding.growth import Growth, growth_of
from export.lower.padding.places import first_places
from export.lower.plan import (
    ROWS,
    VERSION,
    WITHOUT_FORMS,
    WITHOUT_PLACES,
    Buffer,
    Constant,
    GrowingPlan,
    Layer,
    LookupInputs,
    Plan,
    PlanInputs,
    bits_of,
    place_scratch,
)
from export.lower.strided import NUM_LOOPS, reach
from export.lower.values import (
    Elementwise,
    Join,
    Linear,
    NotLoweredError,
    Part,
    Products,
    Space,
    Take,
    Value,
    View,
    Weight,
)

T = TypeVar("T")
# FBGEMM's code for no pooling.
_ROW_OF_EACH_ID = 2


@dataclass(frozen=True)
class Place:
    """Columns of a buffer."""

    buffer: int
    column: int
    width: int

    def part(self, offset: int, width: int) -> Place:
        """Return some of the columns."""
        return Place(self.buffer, self.column + offset, width)


NOWHERE = Place(0, 0, 0)


def _place_in(items: list[T], item: T) -> int:
    """Return the place of an item, which is added if it is not there."""
    if item not in items:
        items.append(item)
    return items.index(item)


def plan_of(values: Several[Value], outputs: Several[Value], inputs: PlanInputs) -> Plan:
    """Plan the steps that compute some values.

    Args:
        values: What is computed, each behind what it is computed of.
        outputs: Those of them, or of the tensors that are there, that the plan returns.
        inputs: What is there.

    Raises:
        NotLoweredError: Nothing tells the number of rows.
    """
    return _Planning(values, outputs, inputs).run()


class _Planning:
    def __init__(self, values: Several[Value], outputs: Several[Value], inputs: PlanInputs) -> None:
        # What is computed for each ID stands before that for which it is.
        self._values = [
            one for value in values for one in (*(value.within if isinstance(value, OfIds) else ()), value)
        ]
        self._outputs = list(outputs)
        self._given = inputs.places
        self._ids = inputs.ids
        self._computed = inputs.computed
        self._counted = inputs.counted
        self._members = set(self._values)
        self._buffers: list[Buffer] = []
        self._places: dict[Value, Place] = {}
        self._vectors: dict[Value, Place] = {}
        self._copies: dict[Value, list[tuple[Part, Place]]] = {}
        self._copied_outputs: list[tuple[Value, Place]] = []
        self._first = first_places(values, outputs)
        self._fusion = fuse(self._values, self._outputs, self._first)
        self._growth: Growth | None = None
        self._resumed: list[tuple[int, int]] = []
        self._inputs: list[int] = []
        self._constants: list[Constant] = []
        self._lookups: list[list[int]] = []
        self._features: list[list[int]] = []
        self._forms: list[list[int]] = []
        self._steps: list[tuple[StepKind, list[Place], int, int]] = []

    def run(self) -> Plan:
        if self._values[0].space is Space.CONTEXTS:
            self._growth = growth_of(self._values, self._outputs, self._first, self._fusion.by_last)
        self._place_outputs()
        for value in reversed(self._values):
            self._place_parts(value)
        # What is computed for each ID belongs to a step. Lengths are first: any step may be bounded by them.
        values = [value for value in self._values if not isinstance(value.space, IdsSpace)]
        lengths = [value for value in values if isinstance(value, Length)]
        bounds = [first.length for first in self._first.values()]
        for value in dict.fromkeys([*lengths, *bounds, *values]):
            self._emit(value)
        for value, place in self._copied_outputs:
            self._copy(place, self._place_of(value))
        kept = self._kept()
        place_scratch(self._buffers, self._used_by_steps(), dict(kept))
        rows_of, per_row = self._find_rows()
        growing = None
        if self._growth is not None:
            growing = GrowingPlan(
                feature=self._growth.length.feature,
                size=self._growth.size,
                every=self._growth.every,
                buffers=kept,
                steps=self._resumed,
            )
        return Plan(
            numbers=torch.tensor(self._numbers(), dtype=torch.int64),
            inputs=self._inputs,
            constants=self._constants,
            values=self._values,
            outputs=self._outputs,
            rows_of=rows_of,
            per_row=per_row,
            growing=growing,
        )

    def _kept(self) -> list[tuple[int, int]]:
        """Return the buffers that are kept where IDs are appended, and how many numbers belong to a place."""
        if self._growth is None:
            return []
        interleaved: dict[Value, Value] = {
            value: whole
            for whole in self._values
            if isinstance(whole, Interleave)
            for part in whole.parts
            if part in self._fusion.interleaved
            for value, _ in [self._fusion.interleaved[part]]
        }
        buffers = {
            self._place_of(interleaved.get(value, value)).buffer: value
            for value in self._values
            if value in self._growth.kept
        }
        return [(buffer, self._each_place(buffer)) for buffer in buffers]

    def _each_place(self, buffer: int) -> int:
        """Return how many numbers of a buffer belong to a place; 0 if places do not follow each other in it."""
        assert self._growth is not None
        size = self._growth.size
        (value, *others) = [one for one, place in self._places.items() if place.buffer == buffer]
        is_whole = not others and self._places[value].width == self._buffers[buffer].width
        return value.width // size if is_whole and value.dims[:1] == (size,) else 0

    def _used_by_steps(self) -> list[list[int]]:
        """Return the buffers that each step uses: one that is bounded also those of the step that bounds it."""
        used: list[list[int]] = []
        leading: list[int] = []
        for kind, places, _, _ in self._steps:
            buffers = [place.buffer for place in places if place.width]
            used.append([*leading, *buffers])
            leading = buffers if kind in (StepKind.FIRST, StepKind.FIRST_PAIRS) else []
        return used

    def _place_outputs(self) -> None:
        """Let outputs be written where they are computed, unless that is a part of something."""
        for index, value in enumerate(self._outputs):
            place = self._add(BufferKind.OUTPUT, index, value.width)
            root = self._root_of(value)
            if root is None or root in self._places:
                self._copied_outputs.append((value, place))
            else:
                self._places[root] = place

    def _place_parts(self, value: Value) -> None:
        """Give the parts of a join their places side by side."""
        if isinstance(value, Join):
            if value not in self._places:
                self._places[value] = self._scratch(value)
            column = 0
            for part in value.parts:
                if part.width:
                    self._place_part(value, part, self._places[value].part(column, part.width))
                column += part.width

    def _place_part(self, join: Join, part: Part, place: Place) -> None:
        root = self._root_of(part.value) if part.width == part.value.width else None
        if root is None or root in self._places:
            self._copies.setdefault(join, []).append((part, place))
        else:
            self._places[root] = place

    def _root_of(self, value: Value) -> Value | None:
        """Return the value that is computed here of which another one is a view of all columns."""
        while value in self._members:
            if not isinstance(value, View):
                return None if value in self._fusion.skipped or isinstance(value, Weight) else value
            if value.source.width != value.width:
                return None
            value = value.source
        return None

    def _place_of(self, value: Value) -> Place:
        if value in self._places:
            return self._places[value]
        if value in self._given:
            place = self._add(BufferKind.INPUT, self._input(self._given[value]), value.width)
        elif isinstance(value, View):
            return self._place_of(value.source).part(value.offset, value.width)
        elif isinstance(value, Weight):
            place = self._add(BufferKind.CONSTANT, self._constant(value), value.width)
        else:
            place = self._scratch(value)
        self._places[value] = place
        return place

    def _emit(self, value: Value) -> None:
        for part, place in self._copies.get(value, []):
            self._copy(place, self._place_of(part.value).part(part.offset, part.width))
        if value in self._fusion.skipped or isinstance(value, (View, Join, Weight)):
            return
        out = self._place_of(value)
        if isinstance(value, Lookup):
            self._step(
                StepKind.LOOKUP,
                [out],
                self._lookup(value.slots, value.pooling, self._ids_of(value), is_weighted=value.is_weighted),
                0,
            )
        elif isinstance(value, Linear):
            self._layer(value, "none", out)
        elif isinstance(value, Products):
            self._step(StepKind.DOT, [out, self._place_of(value.source)], 0, value.source.dims[-1])
        elif isinstance(value, Elementwise):
            self._elementwise(value, out)
        elif isinstance(value, Formed):
            self._formed(value, value.strides, out)
        elif isinstance(value, Interleave):
            for written in value.parts:
                self._written(written, out)
        elif isinstance(value, Sequence):
            lookup = self._lookup((value.slot,), _ROW_OF_EACH_ID, self._ids_of(value), is_weighted=False)
            self._step(StepKind.SEQUENCE, [out], lookup, int(value.order))
        elif isinstance(value, Length):
            self._step(StepKind.LENGTH, [out], self._feature(value.feature), 0)
        elif isinstance(value, Differences):
            self._step(StepKind.DIFFERENCES, [out], self._feature(value.feature), value.dims[0])
        elif isinstance(value, Take):
            places = [out, self._place_of(value.numbers), self._place_of(value.vectors)]
            self._step(StepKind.TAKE, places, 0, value.each)
        elif isinstance(value, ToIds):
            self._step(StepKind.TO_IDS, [out, self._place_of(value.source)], 0, 0)
        elif isinstance(value, ReadIds):
            lookup = self._lookup((value.slot,), _ROW_OF_EACH_ID, self._ids, is_weighted=False)
            self._step(StepKind.READ_IDS, [out], lookup, 0)
        elif isinstance(value, OfIds):
            self._each_id(value, out)
        else:
            raise AssertionError(value)

    def _each_id(self, value: OfIds, out: Place) -> None:
        """Write the padding, then what is computed for each ID."""
        self._fill(out, value.padding)
        if isinstance(value, FromIds):
            kind, lengths, of = StepKind.FROM_IDS, self._place_of(value.lengths), value.dims[0]
        else:
            assert isinstance(value, BagSum)
            kind, lengths, of = StepKind.SUM_IDS, NOWHERE, self._feature(value.feature)
        begin = len(self._steps)
        self._step(StepKind.EACH_ID, [NOWHERE, lengths], 0, of)
        for each in value.within:
            self._emit(each)
        self._step(kind, [out, self._place_of(value.source)], 0, 0)
        self._steps[begin] = (*self._steps[begin][:2], len(self._steps) - begin - 1, of)

    def _fill(self, out: Place, number: Value) -> None:
        one = [0] * (NUM_LOOPS - 1)
        fill = [bits_of(0.0), *[1] * (NUM_LOOPS - 1), out.width, *one, 1, *one, 0, *one, 0]
        places = [out, self._place_of(number)]
        self._step(StepKind.BROADCAST, places, _place_in(self._forms, fill), int(ElementwiseKind.COPY))

    def _only_first(self, value: Value, out: Place) -> None:
        """Let the next step, which computes a value, take the first places alone if that is enough."""
        first = self._first.get(value)
        if first is None:
            return
        if first.fills:
            self._fill(out, Weight(dims=(1,), space=value.space, numbers=torch.zeros(1)))
        kind = StepKind.FIRST_PAIRS if first.are_pairs else StepKind.FIRST
        if self._growth is not None and value in self._growth.loops:
            self._resumed.append((len(self._steps), self._growth.loops[value]))
        self._step(kind, [NOWHERE, self._place_of(first.length)], first.index, first.size)

    def _elementwise(self, value: Elementwise, out: Place) -> None:
        if value in self._fusion.layers:
            return self._layer(self._fusion.layers[value], value.kind.name.lower(), out)
        kind, operands, extra = value.kind, list(value.operands), value.count
        if value in self._fusion.within:
            product, other = self._fusion.within[value]
            kind, operands, extra = ElementwiseKind.MULTIPLY_ADD, [*product.operands, other], 1
        if kind.takes_factor:
            assert value.factor is not None
            extra = bits_of(value.factor)
        self._only_first(value, out)
        return self._step(StepKind.ELEMENTWISE, [out, *map(self._place_of, operands)], int(kind), extra)

    def _written(self, part: Written, out: Place) -> None:
        """Write a part among others: by the step that computes it, if that can, else a copy of it."""
        to = out.part(part.offset, 1 + reach(part.sizes, part.strides))
        within = self._fusion.interleaved.get(part)
        if within is not None:
            value, strides = within
            return self._formed(value, strides, to)
        form = (0.0, part.sizes, part.strides)
        return self._form(StepKind.BROADCAST, int(ElementwiseKind.COPY), form, [part.operand], to)

    def _formed(self, value: Formed, strides: tuple[int, ...], out: Place) -> None:
        """Compute a form, whose loops write by these strides."""
        kind, extra, factor = StepKind.CONTRACT, 0, 0.0
        if isinstance(value, Broadcast):
            kind, extra, factor = StepKind.BROADCAST, int(value.kind), value.factor
        else:
            assert isinstance(value, Contract)
        self._only_first(value, out)
        self._form(kind, extra, (factor, value.sizes, strides), value.operands, out)

    def _form(
        self,
        kind: StepKind,
        extra: int,
        form: tuple[float, tuple[int, ...], tuple[int, ...]],
        operands: Several[Operand],
        out: Place,
    ) -> None:
        factor, sizes, strides = form
        places = [
            self._place_of(one.value).part(one.offset, 1 + reach(sizes, one.strides)) for one in operands
        ]
        # A copy has one operand.
        numbers = [bits_of(factor), *sizes, *strides, *operands[0].strides, *operands[-1].strides]
        self._step(kind, [out, *places], _place_in(self._forms, numbers), extra)

    def _layer(self, layer: Linear, activation: str, out: Place) -> None:
        constant = self._constant(Layer(layer.weight, layer.bias, layer.columns))
        self._only_first(layer, out)
        self._step(
            StepKind.LINEAR, [out, self._place_of(layer.source)], constant, int(ACTIVATIONS[activation])
        )

    def _copy(self, to: Place, source: Place) -> None:
        self._step(StepKind.ELEMENTWISE, [to, source], int(ElementwiseKind.COPY), 1)

    def _step(self, kind: StepKind, places: list[Place], index: int, extra: int) -> None:
        self._steps.append((kind, [*places, *[NOWHERE] * (4 - len(places))], index, extra))

    def _feature(self, feature: int) -> int:
        ids = self._ids
        assert ids is not None
        numbers = [self._input(ids.lengths), self._input(ids.values), ids.num_features, feature]
        return _place_in(self._features, numbers)

    def _ids_of(self, lookup: Lookup | Sequence) -> LookupInputs | None:
        return self._ids if lookup.computed is None else self._computed[lookup.computed]

    def _lookup(
        self, slots: tuple[Slot, ...], pooling: int, ids: LookupInputs | None, *, is_weighted: bool
    ) -> int:
        assert ids is not None
        weights = -1
        if is_weighted:
            assert ids.weights is not None
            weights = self._input(ids.weights)
        self._lookups.append(
            [
                self._constant(ROWS),
                self._constant(slots),
                self._input(ids.lengths),
                self._input(ids.values),
                weights,
                pooling,
                ids.num_features,
            ]
        )
        return len(self._lookups) - 1

    def _constant(self, constant: Constant) -> int:
        for i, known in enumerate(self._constants):
            if known == constant or (
                isinstance(known, Weight) and isinstance(constant, Weight) and known.is_same(constant)
            ):
                return i
        self._constants.append(constant)
        return len(self._constants) - 1

    def _input(self, place: int) -> int:
        return _place_in(self._inputs, place)

    def _add(self, kind: BufferKind, index: int, width: int) -> Place:
        """Add a buffer; return all of its columns."""
        self._buffers.append(Buffer(kind, index, width))
        return Place(len(self._buffers) - 1, 0, width)

    def _scratch(self, value: Value) -> Place:
        kind = BufferKind.IDS if isinstance(value.space, IdsSpace) else BufferKind.SCRATCH
        return self._add(kind, 0, value.width)

    def _find_rows(self) -> tuple[int, int]:
        """Return the input that tells the number of rows, and how many of its numbers belong to one."""
        if self._lookups:
            return self._lookups[0][2], self._lookups[0][6]
        if self._features:
            return self._features[0][0], self._features[0][2]
        found = [(one.index, one.width) for one in self._buffers if one.kind is BufferKind.INPUT]
        if found:
            return found[0]
        if self._counted is None:
            raise NotLoweredError("it computes rows of IDs that the model computes from constants alone")
        place, per_row = self._counted
        return self._input(place), per_row

    def _numbers(self) -> list[int]:
        numbers = [WITHOUT_FORMS, len(self._buffers), len(self._lookups), len(self._steps)]
        if self._first or self._forms or self._features:
            version = VERSION if self._first else WITHOUT_PLACES
            numbers = [version, *numbers[1:], len(self._forms), len(self._features)]
        for buffer in self._buffers:
            numbers += [int(buffer.kind), buffer.index, buffer.width]
        for lookup in self._lookups:
            numbers += lookup
        for step, places, index, extra in self._steps:
            numbers.append(int(step))
            for place in places:
                numbers += [place.buffer, place.column, place.width]
            numbers += [index, extra]
        for more in (*self._features, *self._forms):
            numbers += more
        return numbers
