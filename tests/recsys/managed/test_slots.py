"""Buckets of a mapping: what is placed is found, changes lead where a fresh build leads, and damage is told.

Shape letters: N number of IDs, Q buckets.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from recsys.managed.slots import (
    SLOTS,
    WIDTH,
    FullMappingError,
    buckets_of,
    changed_buckets,
    empty_slots,
    fault_in,
    filled,
    num_buckets_of,
    owners_of,
    rows_in,
)

MIN, MAX = -(2**63), 2**63 - 1


def random_ids(num: int, generator: torch.Generator) -> Tensor:
    ends = torch.tensor([MIN, MAX, 0, -1, 1])
    return torch.unique(torch.cat([ends, torch.randint(MIN, MAX, (num,), generator=generator)]))[:num]


def crafted(num: int, num_buckets: int) -> Tensor:
    """IDs that all want the same two buckets."""
    ids = torch.arange(200_000)
    first, second = buckets_of(ids, num_buckets - 1)
    same = ((first == first[0]) & (second == second[0])) | ((first == second[0]) & (second == first[0]))
    return ids[same][:num]


@pytest.mark.parametrize("num_rows", [1, 2, 5, 30, 100, 1000, 20_000])
def test_random_changes_lead_to_what_a_fresh_build_has(num_rows: int) -> None:
    rng, generator = random.Random(num_rows), torch.Generator().manual_seed(num_rows)
    ids = random_ids(num_rows, generator)
    rows = torch.randperm(num_rows, generator=generator)[: ids.numel()]
    slots = filled(num_buckets_of(num_rows), ids, rows)
    for _ in range(10):
        num = rng.randint(0, ids.numel())
        order = torch.randperm(ids.numel(), generator=generator)
        gone, free = ids[order[:num]], rows[order[:num]]
        new = random_ids(num + 5, generator)
        new = new[~torch.isin(new, ids)][:num]
        got = free[torch.randperm(num, generator=generator)][: new.numel()]
        buckets, contents = changed_buckets(slots, new, got, gone)
        assert torch.equal(buckets, torch.unique(buckets))
        slots[buckets] = contents
        ids, rows = torch.cat([ids[order[num:]], new]), torch.cat([rows[order[num:]], got])
        fresh = filled(len(slots), ids, rows)
        assert fault_in(slots, num_rows) == fault_in(fresh, num_rows) == ""
        assert all(map(torch.equal, owners_of(slots), owners_of(fresh)))
        assert torch.equal(rows_in(slots, ids), rows)
        assert bool((rows_in(slots, gone) == -1).all())


def test_the_two_buckets_of_an_id_differ() -> None:
    ids = random_ids(1000, torch.Generator().manual_seed(0))
    for num_buckets in (2, 16, 1 << 20):
        first, second = buckets_of(ids, num_buckets - 1)
        assert bool((first != second).all())
        assert int(torch.minimum(first, second).min()) >= 0
        assert int(torch.maximum(first, second).max()) < num_buckets


def test_nearly_full_buckets() -> None:
    """IDs move to their other bucket to make room."""
    num = int(256 * SLOTS * 0.94)
    ids = torch.arange(num) * 7919
    slots = filled(256, ids, torch.arange(num))
    assert fault_in(slots, num) == ""
    assert torch.equal(rows_in(slots, ids), torch.arange(num))


def test_ids_that_all_want_the_same_buckets() -> None:
    ids = crafted(9, 32)
    assert fault_in(filled(32, ids[:8], torch.arange(8)), 8) == ""
    with pytest.raises(FullMappingError, match="its buckets are full"):
        filled(32, ids, torch.arange(9))


def test_nothing_changes() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    buckets, contents = changed_buckets(empty_slots(16), none, none, none)
    assert buckets.shape == (0,)
    assert contents.shape == (0, WIDTH)


def _other_bucket(slots: Tensor) -> None:
    slots[:] = slots.roll(1, 0)


def _twice(slots: Tensor) -> None:
    first, second = (part.item() for part in buckets_of(torch.tensor([7]), len(slots) - 1))
    (other,) = {first, second} - set((slots[:, 0] == 7).nonzero().flatten().tolist())
    slots[other, 0], slots[other, SLOTS] = 7, 3


DAMAGES: dict[str, tuple[Any, str]] = {
    "a row of no table": (
        lambda slots: slots[:, SLOTS:].clamp_(min=0).add_(5),
        "got rows 5 to 5, expected -1 to 4",
    ),
    "a row below": (lambda slots: slots[0, SLOTS:].fill_(-2), "got rows -2 to 0"),
    "one row of two": (lambda slots: slots[3, SLOTS:].fill_(2), "got a row of two raw IDs"),
    "another bucket": (_other_bucket, "got a raw ID in another bucket"),
    "an ID twice": (_twice, "got a raw ID with two rows"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_told(damage: Any, message: str) -> None:
    slots = filled(16, torch.tensor([7]), torch.tensor([0]))
    assert fault_in(slots, 5) == ""
    damage(slots)
    assert fault_in(slots, 5).startswith(message)
