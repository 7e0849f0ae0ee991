"""The features and dense inputs that a plain model's inputs become.

Shape letters: B batch, L IDs of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from export.graph.tracing.sizes import input_name
from export.plain.given import Given, Leaf
from export.plain.lookups import Lookup, Table
from export.plain.moved import Moved
from export.plain.traced import PlainGraph
from recsys.errors import ExportError

LEFT, RIGHT, FIXED = "left", "right", "none"


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A feature: some numbers of a row, one after the other, as IDs.

    Attributes:
        name: Its name.
        first: The place of the first number among all numbers of the inputs.
        num_ids: How many numbers.
        side: ``LEFT`` or ``RIGHT`` where rows may have fewer IDs, with padding there; else ``FIXED``.
        padding: What stands for no ID.
    """

    name: str
    first: int
    num_ids: int
    side: str = FIXED
    padding: int = 0

    @property
    def places(self) -> tuple[int, ...]:
        """The places of its numbers."""
        return tuple(range(self.first, self.first + self.num_ids))

    @property
    def is_padded(self) -> bool:
        """Whether rows may have fewer IDs."""
        return self.side != FIXED


@dataclass(frozen=True, kw_only=True)
class Dense:
    """A dense input: the numbers of a leaf that are no IDs.

    Attributes:
        name: Its name.
        places: The places of its numbers, ascending.
    """

    name: str
    places: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What requests give.

    Attributes:
        features: The features.
        dense: The dense inputs.
    """

    features: tuple[Feature, ...]
    dense: tuple[Dense, ...]

    def request(self, given: Given) -> dict[str, Any]:
        """Return example inputs as a request in JSON."""
        numbers = numbers_of(given)
        return {
            "dense": {one.name: numbers[:, list(one.places)].tolist() for one in self.dense},
            "sparse": {one.name: _bags(numbers[:, list(one.places)].long(), one) for one in self.features},
        }


def numbers_of(given: Given) -> Tensor:
    """Return all numbers of the example inputs, ``[B, number]`` float64."""
    return torch.cat(
        [
            leaf.tensor.flatten(1).double() if leaf.tensor.dim() > 1 else leaf.tensor.double().view(-1, 1)
            for leaf in given.leaves
        ],
        dim=1,
    )


def _bags(ids: Tensor, feature: Feature) -> list[list[int]]:
    return [_without_padding(row, feature) for row in ids.tolist()]


def _without_padding(row: list[int], feature: Feature) -> list[int]:
    begin, end = 0, len(row)
    if feature.side == RIGHT:
        while end and row[end - 1] == feature.padding:
            end -= 1
    elif feature.side == LEFT:
        while begin < end and row[begin] == feature.padding:
            begin += 1
    return row[begin:end]


def make_inputs(
    plain: PlainGraph, tables: Sequence[Table], moved: Mapping[fx.Node, Moved], padding: Mapping[str, str]
) -> Inputs:
    """Return the features and dense inputs.

    Args:
        plain: The graph; what it does not read is no input.
        tables: What IDs are looked up in, what stays dense too.
        moved: The nodes that hold numbers of the inputs.
        padding: What the user says of features: ``left``, ``right``, ``none``, or ``left:ID``.

    Raises:
        ExportError: ``padding`` names no feature, or what it says is not understood.
    """
    lookups = [(table, lookup) for table in tables for lookup in table.lookups if lookup.ids in moved]
    given, read = plain.given, {input_name(node) for node in plain.graph.nodes}
    numbers = numbers_of(given)
    features: list[Feature] = []
    dense: list[Dense] = []
    for leaf in given.leaves:
        places = given.places[leaf.name]
        if leaf.name not in read:
            continue
        groups = _groups(places, [unit for _, lookup in lookups for unit in units(moved[lookup.ids])])
        if not leaf.is_float:
            groups += _runs([place for place in places if all(place not in group for group in groups)])
        groups.sort()
        for group in groups:
            name = _name(leaf, group, places)
            feature = Feature(name=name, first=group[0], num_ids=len(group))
            features.append(_padded(feature, lookups, moved, numbers))
        left = tuple(
            place for place in places if leaf.is_float and all(place not in group for group in groups)
        )
        if left:
            dense.append(Dense(name=leaf.name, places=left))
    features = [_as_said(feature, padding.get(feature.name)) for feature in features]
    unknown = sorted(set(padding) - {feature.name for feature in features})
    if unknown:
        raise ExportError(
            f"padding: got {unknown[0]!r}, expected one of {[one.name for one in features][:20]}"
        )
    return Inputs(features=tuple(_aligned(features, numbers)), dense=tuple(dense))


def units(ids: Moved) -> list[tuple[int, ...]]:
    """Return the places of IDs that a lookup reads as one: those with equal shifts, where it adds any."""
    places = ids.places
    if ids.shift is None:
        return [places]
    found: dict[int, list[int]] = {}
    for place, shift in zip(places, ids.shift.flatten().tolist(), strict=True):
        found.setdefault(shift, []).append(place)
    return [tuple(one) for one in found.values()]


def _groups(places: range, found: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return what is looked up of a leaf in groups that have no number in common, each without gaps."""
    groups: list[set[int]] = []
    for unit in found:
        inside = set(unit) & set(places)
        if not inside:
            continue
        inside = set(range(min(inside), max(inside) + 1)) if len(inside) > 1 else inside
        for other in [group for group in groups if group & inside]:
            groups.remove(other)
            inside |= other
        groups.append(inside)
    return [tuple(sorted(group)) for group in groups]


def _runs(places: Sequence[int]) -> list[tuple[int, ...]]:
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return [tuple(run) for run in runs]


def _name(leaf: Leaf, group: Sequence[int], places: range) -> str:
    if len(group) == len(places):
        return leaf.name
    first, last = group[0] - places.start, group[-1] - places.start
    return f"{leaf.name}.{first}" if first == last else f"{leaf.name}.{first}-{last}"


def _padded(
    feature: Feature, lookups: Sequence[tuple[Table, Lookup]], moved: Mapping[fx.Node, Moved], numbers: Tensor
) -> Feature:
    """Return a feature with the padding that its samples show.

    Some rows have it on one side, none on the other, and a lookup reads all of its IDs or has a ``padding_idx``.
    """
    if feature.num_ids == 1:
        return feature
    readers = [
        (table, moved[one.ids]) for table, one in lookups if {*moved[one.ids].places} & {*feature.places}
    ]
    ids = {table.padding_idx for table, _ in readers if table.padding_idx is not None}
    is_whole = any(of.shift is None and of.places == feature.places for _, of in readers)
    if len(ids) > 1 or not (ids or is_whole):
        return feature
    padding = ids.pop() if ids else 0
    return replace(feature, side=_side(numbers[:, list(feature.places)], padding), padding=padding)


def _side(ids: Tensor, padding: int) -> str:
    is_left, is_right = (ids[:, 0] == padding), (ids[:, -1] == padding)
    is_none = (ids == padding).all(dim=1)
    left, right = bool((is_left & ~is_none).any()), bool((is_right & ~is_none).any())
    if left == right:
        return FIXED
    return LEFT if left else RIGHT


def _as_said(feature: Feature, said: str | None) -> Feature:
    if said is None:
        return feature
    side, _, padding = said.partition(":")
    if side not in (LEFT, RIGHT, FIXED) or not (padding or "0").lstrip("-").isdigit():
        raise ExportError(
            f"padding[{feature.name!r}]: got {said!r}, expected left, right or none, or left:ID"
        )
    return replace(feature, side=side, padding=int(padding) if padding else feature.padding)


def _aligned(features: Sequence[Feature], numbers: Tensor) -> list[Feature]:
    """Return features with the padding of others that have it in the same places of every sample."""
    padded = [one for one in features if one.is_padded]
    found = []
    for feature in features:
        if not feature.is_padded and feature.num_ids > 1:
            ids = numbers[:, list(feature.places)]
            like = next(
                (
                    one
                    for one in padded
                    if one.num_ids == feature.num_ids
                    and _side(ids, 0) == one.side
                    and torch.equal(
                        _lengths(ids, one.side, 0),
                        _lengths(numbers[:, list(one.places)], one.side, one.padding),
                    )
                ),
                None,
            )
            if like is not None:
                feature = replace(feature, side=like.side)
        found.append(feature)
    return found


def _lengths(ids: Tensor, side: str, padding: int) -> Tensor:
    """Return the number of IDs of each row without its padding."""
    ids = ids.flip(1) if side == RIGHT else ids
    return ids.shape[1] - (ids == padding).long().cumprod(dim=1).sum(dim=1)
