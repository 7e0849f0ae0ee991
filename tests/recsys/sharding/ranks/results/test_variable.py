"""Batches that store equal bags once: outputs and updates are those of the full batch, on all ranks or on some."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from recsys import ParameterSharding, ShardMetadata
from recsys.jagged.dedup import deduplicate
from recsys.sharding.plan.sharding_types import table_wise
from tests.recsys.sharding.ranks.cases import Draw, RankCase, named_outputs, random_case
from tests.recsys.sharding.ranks.training import check_case, sharded
from tests.support.helpers import bag
from tests.support.ranks import live_pool

DRAWS = {
    **{f"W=1 {i}": Draw(world_size=1, deduplicated="all") for i in range(4)},
    **{f"W=2 {i}": Draw(world_size=2, deduplicated="all") for i in range(12)},
    **{f"W=4 {i}": Draw(world_size=4, deduplicated="all") for i in range(12)},
    **{f"W=2 some {i}": Draw(world_size=2, deduplicated="some") for i in range(12)},
    **{f"W=4 some {i}": Draw(world_size=4, deduplicated="some") for i in range(12)},
}
SEQUENCES = {
    f"W={world_size} {deduplicated} {i}": Draw(
        world_size=world_size, sequence=True, deduplicated=deduplicated
    )
    for world_size in (2, 4)
    for deduplicated in ("all", "some")
    for i in range(5)
}


@pytest.mark.parametrize("name", list(DRAWS))
def test_equal_bags_stored_once_train_as_the_full_batch(name: str) -> None:
    check_case(random_case(f"variable {name}", DRAWS[name]))


def test_columns_that_are_cut_by_rows_beside_others_that_are_not() -> None:
    """Means of the first are divided where they are put together, of the second where they are looked up."""
    drawn = random_case("uneven means", Draw(world_size=2, deduplicated="all"))
    table = bag("t", 6, 8, ["f"], "MEAN")
    shards = [((0, 0), (3, 4), 0), ((3, 0), (3, 4), 1), ((0, 4), (6, 4), 1)]
    cut = ParameterSharding(
        sharding_type="grid_shard",
        shards=tuple(ShardMetadata(shard_offsets=o, shard_sizes=s, rank=r) for o, s, r in shards),
    )
    case = replace(
        drawn,
        weighted=False,
        tables=[table, bag("u", 6, 8, ["g"])],
        plan={"t": cut, "u": table_wise(table, 0)},
        batch_sizes=[[6, 5], [4, 6]],
        id_limits={"f": 6, "g": 6},
    )
    strides = {tuple(case.batch_to_shard(step, rank).stride_per_key()) for step in (0, 1) for rank in (0, 1)}
    assert any(len(set(of_batch)) > 1 for of_batch in strides)
    check_case(case)


def test_the_random_cases_hold_what_they_should() -> None:
    cases = [random_case(f"variable {name}", draw) for name, draw in DRAWS.items()]
    mixed = [case for case in cases if len(set(case.deduplicated)) == 2]
    assert len(mixed) > 5
    assert {case.weighted for case in cases} == {True, False}
    batches = [
        deduplicate(case.batch(step, rank))
        for case in cases
        for step, sizes in enumerate(case.batch_sizes)
        for rank in range(len(sizes))
    ]
    # Features with batches of other sizes, features of one size that is less than the full one, no bags at all.
    assert any(len(set(batch.stride_per_key())) > 1 for batch in batches)
    assert any(len(set(b.stride_per_key())) == 1 and 0 < b.stride_per_key()[0] < b.stride() for b in batches)
    assert any(batch.stride() == 0 for batch in batches)


def sequence_outputs(rank: int, world_size: int, case: RankCase) -> list[tuple[object, object, object]]:
    """For each output the sharded rows, the unsharded ones, and whether the lengths are equal."""
    del world_size
    found = []
    for step in range(len(case.batch_sizes)):
        batch = case.batch_to_shard(step, rank)
        expected = case.collection()(batch)
        answer = sharded(case)(batch).wait()
        assert named_outputs(expected).keys() == answer.keys()
        for name, jagged in answer.items():
            same = torch.equal(jagged.lengths(), expected[name].lengths())
            found.append((jagged.values().detach(), expected[name].values().detach(), same))
    return found


@pytest.mark.parametrize("name", list(SEQUENCES))
def test_sequences_keep_each_features_own_batch(name: str) -> None:
    case = random_case(f"variable sequence {name}", SEQUENCES[name])
    for found in live_pool(case.draw.world_size).run(sequence_outputs, case):
        for values, expected, same_lengths in found:
            assert same_lengths
            assert torch.equal(values, expected)
