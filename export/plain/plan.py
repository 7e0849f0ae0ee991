"""How the tables of a plain model are stored, and how its lookups read them.

Shape letters: B batch, L IDs of a row, D embedding dim, R rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, fx

from export.plain.features import Feature, Inputs
from export.plain.lookups import Lookup, Table
from export.plain.moved import Moved
from recsys.configs import PoolingType

#: The attributes of the converted model that hold the collections.
POOLED, SEQUENCES, COMPUTED = "tables", "sequences", "computed"


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows of a table, for IDs to which the model adds the number of the first.

    Attributes:
        name: The name of the stored table.
        first: The number of the first row.
        weight: ``[R, D]``.
    """

    name: str
    first: int
    weight: Tensor


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The IDs of a lookup that are those of one feature, in one stored table."""

    feature: Feature
    part: Part


@dataclass(kw_only=True)
class Plan:
    """How a table is stored and read.

    Attributes:
        table: The table.
        parts: The stored tables.
        kind: ``POOLED``, ``SEQUENCES`` or ``COMPUTED``.
        segments: Of each lookup, unless the model computes IDs.
        pooling: Of a pooled table.
    """

    table: Table
    parts: list[Part]
    kind: str
    segments: dict[fx.Node, list[Segment]]
    pooling: PoolingType = PoolingType.SUM

    @property
    def dim(self) -> int:
        """D."""
        return self.table.weight.shape[1]


def plan_of(table: Table, inputs: Inputs, moved: Mapping[fx.Node, Moved]) -> Plan:
    """Return how a table is stored and read."""
    whole = Part(name=table.name, first=0, weight=table.weight)
    computed = Plan(table=table, parts=[whole], kind=COMPUTED, segments={})
    if any(lookup.ids not in moved for lookup in table.lookups):
        return computed
    parts = _parts(table, moved)
    segments = {}
    for lookup in table.lookups:
        found = _segments(lookup, moved[lookup.ids], inputs, parts)
        if found is None:
            return computed
        segments[lookup.node] = found
    modes = {
        lookup.mode for lookup in table.lookups for one in segments[lookup.node] if one.feature.num_ids > 1
    }
    can_pool = (
        len(modes) == 1
        and modes <= {"sum", "mean"}
        and all(_pools(lookup, segments[lookup.node]) for lookup in table.lookups)
    )
    if not modes or can_pool:
        mean = "mean" in modes
        kind, pooling = POOLED, PoolingType.MEAN if mean else PoolingType.SUM
    else:
        kind, pooling = SEQUENCES, PoolingType.SUM
        if not all(_pads_with_zeros(one) for found in segments.values() for one in found):
            return computed
    return Plan(table=table, parts=[*parts.values()], kind=kind, segments=segments, pooling=pooling)


def _parts(table: Table, moved: Mapping[fx.Node, Moved]) -> dict[int, Part]:
    """Return the parts of a table by what is added to IDs."""
    shifts: set[int] = set()
    for lookup in table.lookups:
        shift = moved[lookup.ids].shift
        shifts |= {0} if shift is None else set(shift.flatten().tolist())
    firsts = sorted(shifts)
    if firsts == [0]:
        return {0: Part(name=table.name, first=0, weight=table.weight)}
    ends = [*firsts[1:], len(table.weight)]
    return {
        first: Part(name=f"{table.name}_{i}", first=first, weight=table.weight[first:end])
        for i, (first, end) in enumerate(zip(firsts, ends, strict=True))
        if 0 <= first < end <= len(table.weight)
    }


def _segments(lookup: Lookup, ids: Moved, inputs: Inputs, parts: Mapping[int, Part]) -> list[Segment] | None:
    """Return the features that a lookup's IDs are, one after the other; None if they are other IDs."""
    features = {one.first: one for one in inputs.features}
    places = ids.places
    shifts = [0] * len(places) if ids.shift is None else ids.shift.flatten().tolist()
    found = []
    at = 0
    while at < len(places):
        feature = features.get(places[at])
        if feature is None or places[at : at + feature.num_ids] != feature.places:
            return None
        of_feature = {*shifts[at : at + feature.num_ids]}
        if len(of_feature) != 1 or (part := parts.get(of_feature.pop())) is None:
            return None
        found.append(Segment(feature=feature, part=part))
        at += feature.num_ids
    # Requests may have fewer IDs: rows of several features would move.
    is_one = len(found) == 1
    return found if is_one or lookup.per_id_weights is None else None


def _pools(lookup: Lookup, segments: Sequence[Segment]) -> bool:
    """Return whether a lookup sums up or averages the bags that requests give."""
    feature = segments[0].feature
    if feature.num_ids == 1:
        return True
    is_left_out = not feature.is_padded or lookup.padding_idx == feature.padding + segments[0].part.first
    fits = feature.is_padded or lookup.padding_idx is None
    return len(segments) == 1 and bool(lookup.mode) and lookup.per_id_weights is None and is_left_out and fits


def _pads_with_zeros(segment: Segment) -> bool:
    feature, weight = segment.feature, segment.part.weight
    if not feature.is_padded:
        return True
    return 0 <= feature.padding < len(weight) and not bool(weight[feature.padding].any())


def reduces(plan: Plan, lookup: Lookup) -> bool:
    """Return whether the rows of a bag are reduced after the lookup, and not by it."""
    return bool(lookup.mode) and plan.kind != POOLED


def computed_name(plan: Plan) -> str:
    """Return the attribute that holds the collection of a table whose IDs the model computes."""
    return f"{COMPUTED}_{plan.parts[0].name}"
