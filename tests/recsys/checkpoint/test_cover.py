"""Shards make a whole tensor, or the rectangle at fault is named; a table of counts is the oracle."""

from __future__ import annotations

import itertools
import random
import re

import pytest
import torch

from recsys.checkpoint.cover import Box, check_cover
from recsys.errors import CheckpointError


def _cut(rng: random.Random, size: int, at_most: int) -> list[tuple[int, int]]:
    edges = sorted({0, size, *(rng.randrange(size + 1) for _ in range(rng.randrange(at_most)))})
    return [(start, end - start) for start, end in itertools.pairwise(edges)]


def _grid(rng: random.Random, shape: list[int]) -> list[Box]:
    """A random grid, cut differently in each column block."""
    boxes: list[Box] = []
    for column, width in _cut(rng, shape[1], 4):
        boxes += [((row, column), (height, width)) for row, height in _cut(rng, shape[0], 5)]
    rng.shuffle(boxes)
    return boxes


@pytest.mark.parametrize("seed", range(40))
def test_random_cuts(seed: int) -> None:
    rng = random.Random(seed)
    shape = [rng.randrange(1, 12), rng.randrange(1, 12)]
    boxes = _grid(rng, shape)
    check_cover("w", shape, [*boxes, ((shape[0], 0), (0, shape[1]))])
    lost = rng.choice(boxes)
    left = [box for box in boxes if box != lost]
    counts = torch.zeros(shape)
    for (row, column), (height, width) in left:
        counts[row : row + height, column : column + width] += 1
    with pytest.raises(CheckpointError, match="is a rank's file missing") as missing:
        check_cover("w", shape, left)
    found = re.search(r"rows (\d+):(\d+), columns (\d+):(\d+)", str(missing.value))
    assert found is not None
    top, bottom, start, end = map(int, found.groups())
    assert bool((counts[top:bottom, start:end] == 0).all())
    with pytest.raises(CheckpointError, match="shards overlap"):
        check_cover("w", shape, [*boxes, lost])


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ([], [((), ())]),
        ([0, 4], []),
        ([5], [((0,), (2,)), ((2,), (3,))]),
        ([2, 2, 2], [((0, 0, 0), (2, 2, 2))]),
    ],
    ids=["a scalar", "no rows", "one dim", "three dims"],
)
def test_other_dims(shape: list[int], boxes: list[Box]) -> None:
    check_cover("w", shape, boxes)
    if boxes:
        with pytest.raises(CheckpointError, match="no shard holds"):
            check_cover("w", shape, boxes[1:])


def test_cuts_without_end_are_refused() -> None:
    boxes = [((i, i), (1, 1)) for i in range(4000)]
    with pytest.raises(CheckpointError, match="cut in too many places"):
        check_cover("w", [5000, 5000], boxes)
