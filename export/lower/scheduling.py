"""What a lowered form consists of, and in which order its steps run.

Shape letters: B rows, Q contexts, F features.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from export.graph.prepared import PreparedModel
from export.lower.bags import ComputedIds, FlatSpace, computed_ids
from export.lower.leaves import Leaves
from export.lower.operators.sequences import Ids, Lengths
from export.lower.operators.views import RowContext
from export.lower.plan import LookupInputs, Plan, PlanInputs
from export.lower.planning import plan_of
from export.lower.regions import Outside, Region, Regions
from export.lower.spaces.report import SpacesReport
from export.lower.values import (
    Expand,
    Input,
    NotLoweredError,
    Space,
    Value,
    Weight,
)


@dataclass(frozen=True, kw_only=True)
class Check:
    """The shape of an input: ``[n]``, or ``[n, width]`` where the width is not 0.

    n is ``of.size(0) // per_row * times``.

    Attributes:
        input: Its position.
        of: The position of the input that tells the number of rows.
    """

    input: int
    of: int
    per_row: int
    times: int
    width: int


@dataclass(frozen=True, kw_only=True)
class Gather:
    """Rows of one tensor by the numbers in another, by their places."""

    rows: int
    index: int


@dataclass(frozen=True, kw_only=True)
class PlacedRegion:
    """A part that torch computes, and the places of what it takes."""

    region: Region
    inputs: list[int]


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """A form of a model as a program.

    Attributes:
        num_inputs: How many tensors it takes. They have the first places, and the results of each step the next.
        checks: The shapes of inputs.
        steps: In order.
        outputs: The place of each, by name.
        weights: The dense weights, by path.
        spaces: What is computed for contexts and what for rows; None but of ranking forms.
    """

    num_inputs: int
    checks: list[Check]
    steps: list[Plan | Gather | PlacedRegion]
    outputs: dict[str, int]
    weights: dict[str, Tensor]
    spaces: SpacesReport | None = None


class GraphInputs:
    """The inputs of a graph: their places, and the values that they are."""

    def __init__(self, prepared: PreparedModel, leaves: Leaves, *, is_ranking: bool) -> None:
        signature = prepared.signature
        context = signature.context if is_ranking else ()
        self.values: dict[str, Any] = {}
        self.names: list[str] = []
        self._leaves = leaves
        for i, dense in enumerate(signature.dense):
            space = Space.CONTEXTS if dense.name in context else Space.ROWS
            self.names.append(f"dense_{i}")
            self.values[self.names[-1]] = Input(dims=(dense.width,), space=space, index=i)
        ids = ["lengths", "values", *(["weights"] if signature.is_weighted else [])]
        self.names += [f"context_{name}" for name in ids] if is_ranking else []
        self.names += [*ids, *(["row_context"] if is_ranking else [])]
        self.ids: dict[Space, LookupInputs] = {}
        for space, prefix in ((Space.CONTEXTS, "context_"), (Space.ROWS, "")):
            if f"{prefix}lengths" not in self.names:
                continue
            num_features = len(leaves.names[space])
            self.values[f"{prefix}lengths"] = Lengths(space, num_features)
            self.values[f"{prefix}values"] = Ids(space, num_features)
            self.ids[space] = LookupInputs(
                lengths=self.names.index(f"{prefix}lengths"),
                values=self.names.index(f"{prefix}values"),
                weights=self.names.index(f"{prefix}weights") if signature.is_weighted else None,
                num_features=num_features,
            )
        if is_ranking:
            self.values["row_context"] = RowContext()

    def checks(self, read: Iterable[Value]) -> list[Check]:
        """Return the checks of shapes that no plan makes.

        Args:
            read: The values that something else than a plan reads.
        """
        counted = {space: self._counted(space) for space in self.ids}
        found = []
        for space, ids in self.ids.items():
            of, per_row = counted[space]
            if ids.num_features and of != ids.lengths:
                found.append(
                    Check(input=ids.lengths, of=of, per_row=per_row, times=ids.num_features, width=0)
                )
        for value in dict.fromkeys(read):
            if isinstance(value, Input):
                of, per_row = counted[value.space]
                found.append(Check(input=value.index, of=of, per_row=per_row, times=1, width=value.width))
        return found

    def numbers_counted(self, space: Space) -> tuple[int, int] | None:
        """Return the input that tells the rows of a space, and how many of its numbers belong to one."""
        if space not in self.ids:
            return None
        of, per_row = self._counted(space)
        widths = {one.index: one.width for one in self.values.values() if isinstance(one, Input)}
        return of, per_row * widths.get(of, 1)

    def _counted(self, space: Space) -> tuple[int, int]:
        """Return the input that tells the rows of a space, and how many of its items belong to one."""
        if space is Space.ROWS and "row_context" in self.names:
            return self.names.index("row_context"), 1
        ids = self.ids[space]
        if ids.num_features:
            return ids.lengths, ids.num_features
        dense = [v.index for v in self.values.values() if isinstance(v, Input) and v.space is space]
        return dense[0], 1


class Scheduling:
    """Puts values and regions into steps, level by level: contexts first, then what is expanded to rows, then rows.

    Args:
        outputs: The outputs by name.
        inputs: The inputs of the graph.
        regions: What is computed outside of steps.
        weights: The dense weights by path.
        mappings: The paths of the buckets of mappings, which regions read.
    """

    def __init__(
        self,
        outputs: Mapping[str, Value | Outside],
        inputs: GraphInputs,
        regions: Regions,
        weights: Mapping[str, Tensor],
        mappings: Collection[str] = (),
    ) -> None:
        self._mappings = mappings
        self._outputs = outputs
        self._inputs = inputs
        self._regions = regions
        self._weights = weights
        self._steps: list[Plan | Gather | PlacedRegion] = []
        self._places: dict[Value | fx.Node, int] = {
            value: value.index for value in inputs.values.values() if isinstance(value, Input)
        }
        self._num_places = len(inputs.names)

    def run(self) -> Lowered:
        """Return the form.

        Raises:
            NotLoweredError: Steps compute none of it.
        """
        needed = self._regions.needed(self._outputs.values())
        self._levels, taken = needed.levels, needed.taken
        results = [one for one in self._outputs.values() if isinstance(one, Value)]
        for level in range(max([*needed.regions, *self._levels.values()], default=0) + 1):
            if level in needed.regions:
                self._call(needed.regions[level])
            expanded = [one for one, of in self._levels.items() if isinstance(one, Expand) and of == level]
            later = self._read_later(level)
            self._plan(level, Space.CONTEXTS, [*(one.source for one in expanded), *taken, *later])
            for value in expanded:
                self._steps.append(
                    Gather(rows=self._places[value.source], index=self._place_of("row_context"))
                )
                self._place(value)
            for space in dict.fromkeys(value.space for value in taken if isinstance(value.space, FlatSpace)):
                self._plan(level, space, taken)
            self._plan(level, Space.ROWS, [*results, *taken, *later])
        if not any(isinstance(step, Plan) for step in self._steps):
            why = [one.why for one in self._outputs.values() if isinstance(one, Outside)]
            raise NotLoweredError(why[0] if why else "it computes nothing")
        read_by_others = [*(one.source for one in self._levels if isinstance(one, Expand)), *taken, *results]
        return Lowered(
            num_inputs=len(self._inputs.names),
            checks=self._inputs.checks(read_by_others),
            steps=self._steps,
            outputs={
                name: self._places[one.node if isinstance(one, Outside) else one]
                for name, one in self._outputs.items()
            },
            weights=self._read_weights(),
        )

    def _read_later(self, level: int) -> list[Value]:
        """Return what steps of a later level read of those of a level."""
        return [
            source
            for value, of in self._levels.items()
            if of > level
            for source in value.sources
            if self._levels[source] == level and not isinstance(source, Weight)
        ]

    def _plan(self, level: int, space: Space, wanted: Sequence[Value]) -> None:
        """Compute those of some values that are of a level and a space, unless they are there."""
        missing = [
            value
            for value in dict.fromkeys(wanted)
            if value not in self._places and value.space is space and self._levels[value] == level
        ]
        if not missing:
            return
        values = [value for value in _in_order(missing, self._places) if value.space is space]
        places = {value: place for value, place in self._places.items() if isinstance(value, Value)}
        inputs = PlanInputs(
            places=places,
            ids=self._inputs.ids.get(space),
            computed={one: self._ids_of(one) for one in map(computed_ids, values) if one is not None},
            counted=self._inputs.numbers_counted(space),
        )
        self._steps.append(plan_of(values, missing, inputs))
        for value in missing:
            self._place(value)

    def _ids_of(self, computed: ComputedIds) -> LookupInputs:
        def place(node: fx.Node) -> int:
            return self._place_of(str(node.target) if node.op == "placeholder" else node)

        return LookupInputs(
            lengths=place(computed.lengths),
            values=place(computed.values),
            weights=None if computed.weights is None else place(computed.weights),
            num_features=computed.num_features,
        )

    def _call(self, region: Region) -> None:
        self._steps.append(PlacedRegion(region=region, inputs=list(map(self._place_of, region.inputs))))
        for one in region.outputs:
            self._place(one)

    def _place_of(self, one: str | Value | fx.Node) -> int:
        """Return the place of an input of the graph by its name, or of what is there."""
        return self._inputs.names.index(one) if isinstance(one, str) else self._places[one]

    def _place(self, one: Value | fx.Node) -> None:
        self._places[one] = self._num_places
        self._num_places += 1

    def _read_weights(self) -> dict[str, Tensor]:
        read = {
            one.path
            for step in self._steps
            if isinstance(step, Plan)
            for one in step.constants
            if isinstance(one, Weight)
        }
        return {
            path: one
            for path, one in self._weights.items()
            if one.numel() and (one.is_floating_point() or path in read or path in self._mappings)
        }


def _in_order(values: Iterable[Value], there: Container[Any]) -> list[Value]:
    """Return the values and all that they are computed of, in the order of the model's code.

    Args:
        values: The values.
        there: What need not be computed.
    """
    found: set[Value] = set()
    open_values = list(values)
    while open_values:
        value = open_values.pop()
        if value not in found and value not in there:
            found.add(value)
            open_values += value.sources
    return sorted(found, key=lambda value: value.number)
