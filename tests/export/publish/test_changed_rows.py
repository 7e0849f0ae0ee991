"""Rows that differ, of which some are added again."""

from __future__ import annotations

import random

import pytest
import torch

from export.publish.publication import ChangedRows


@pytest.mark.parametrize("seed", range(30))
def test_the_last_of_a_row_counts(seed: int) -> None:
    rng = random.Random(seed)
    changed, expected = ChangedRows(), dict[int, int]()
    for value in range(rng.randrange(8)):
        numbers = sorted(rng.sample(range(40), rng.randrange(1, 10)))
        differs = [rng.random() < 0.6 for _ in numbers]
        rows = torch.tensor([[value * 100 + number] for number in numbers])
        changed.add(torch.tensor(numbers), rows, torch.tensor(differs))
        for number, row, does in zip(numbers, rows.flatten().tolist(), differs, strict=True):
            expected.pop(number, None)
            if does:
                expected[number] = row
    found = [
        (n, r)
        for numbers, rows in changed.parts()
        for n, (r,) in zip(numbers.tolist(), rows.tolist(), strict=True)
    ]
    assert found == sorted(expected.items())
