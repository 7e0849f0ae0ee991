"""Comparison of two states of a mapping."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from recsys.managed.changes import MappingChange, joined_changes, mapping_change


def owners(rows: dict[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = sorted(rows)
    return torch.tensor(ids, dtype=torch.int64), torch.tensor([rows[i] for i in ids], dtype=torch.int64)


def applied(before: dict[int, int], change: MappingChange) -> dict[int, int]:
    found = {i: row for i, row in before.items() if i not in change.evicted.tolist()}
    return found | dict(zip(change.raw_ids.tolist(), change.rows.tolist(), strict=True))


def random_state(rng: random.Random) -> dict[int, int]:
    ids = rng.sample(range(-10, 10), rng.randrange(12))
    return dict(zip(ids, rng.sample(range(15), len(ids)), strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_it_leads_from_one_to_the_other(seed: int) -> None:
    rng = random.Random(seed)

    before, after = random_state(rng), random_state(rng)
    change = mapping_change(owners(before), owners(after))
    assert applied(before, change) == after
    assert change.evicted.tolist() == sorted(set(before) - set(after))
    assert all(
        before.get(i) != row for i, row in zip(change.raw_ids.tolist(), change.rows.tolist(), strict=True)
    )
    assert change.is_empty == (before == after)


@pytest.mark.parametrize("seed", range(20))
def test_joined_changes_fit_each_state_of_the_chain(seed: int) -> None:
    rng = random.Random(seed)
    states = [random_state(rng) for _ in range(5)]
    changes = [mapping_change(owners(a), owners(b)) for a, b in itertools.pairwise(states)]
    joined = joined_changes(changes)
    for state in states:
        assert applied(state, joined) == states[-1]
