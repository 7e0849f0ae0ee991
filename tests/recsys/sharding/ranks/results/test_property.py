"""Random collections and plans on ranks: outputs, gradients and weights are the unsharded collection's.

Shape letters: W world size.
"""

from __future__ import annotations

import pytest

from recsys import DataType
from tests.recsys.sharding.ranks.cases import Draw, RankCase, random_case
from tests.recsys.sharding.ranks.training import check_case

_FLOATS = (DataType.FP32, DataType.FP32, DataType.FP16, DataType.BF16)
DRAWS = {
    **{f"W=1 {i}": Draw(world_size=1) for i in range(5)},
    **{f"W=2 {i}": Draw(world_size=2) for i in range(40)},
    **{f"W=4 {i}": Draw(world_size=4, num_steps=3) for i in range(40)},
    **{f"W=2 half {i}": Draw(world_size=2, data_types=_FLOATS) for i in range(15)},
    **{f"W=4 half {i}": Draw(world_size=4, data_types=_FLOATS) for i in range(15)},
}


@pytest.mark.parametrize("name", list(DRAWS))
def test_pooled_embeddings_train_as_unsharded_ones(name: str) -> None:
    check_case(random_case(name, DRAWS[name]))


def test_the_random_cases_hold_what_they_should() -> None:
    cases = [random_case(name, draw) for name, draw in DRAWS.items()]
    plans = [sharding for case in cases for sharding in case.plan.values()]
    assert {p.sharding_type for p in plans} == {
        "data_parallel",
        "table_wise",
        "column_wise",
        "row_wise",
        "table_row_wise",
        "grid_shard",
    }
    for of_type in ("column_wise", "row_wise", "table_row_wise", "grid_shard"):
        assert max(len(p.shards) for p in plans if p.sharding_type == of_type) > 1, of_type
    assert {case.local_world_size for case in cases} == {1, 2, 4}
    assert {case.weighted for case in cases} == {True, False}
    assert any(len(set(p.ranks)) < len(p.ranks) for p in plans)
    assert any(_rows_are_uneven(case) for case in cases)
    sizes = [sizes for case in cases for sizes in case.batch_sizes]
    assert any(0 in s and max(s) > 0 for s in sizes)
    assert any(max(s) == 0 for s in sizes)
    assert any(t.num_embeddings < case.draw.world_size for case in cases for t in case.tables)


def _rows_are_uneven(case: RankCase) -> bool:
    """Whether a cut by hand leaves one rank several times the rows of another."""
    for sharding in case.plan.values():
        rows = [shard.shard_sizes[0] for shard in sharding.shards]
        if rows and max(rows) > 3 * min(rows):
            return True
    return False
