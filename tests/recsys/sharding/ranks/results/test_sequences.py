"""Random collections of single rows on ranks: one row per ID, in the IDs' order; weights as of the unsharded one."""

from __future__ import annotations

import pytest

from recsys import DataType
from tests.recsys.sharding.ranks.cases import Draw, random_case
from tests.recsys.sharding.ranks.training import check_case

_FLOATS = (DataType.FP32, DataType.FP16, DataType.BF16)
DRAWS = {
    **{f"W=1 {i}": Draw(world_size=1, sequence=True) for i in range(5)},
    **{f"W=2 {i}": Draw(world_size=2, sequence=True) for i in range(20)},
    **{f"W=4 {i}": Draw(world_size=4, sequence=True, num_steps=3) for i in range(25)},
    **{f"W=4 half {i}": Draw(world_size=4, sequence=True, data_types=_FLOATS) for i in range(10)},
}


@pytest.mark.parametrize("name", list(DRAWS))
def test_single_rows_train_as_unsharded_ones(name: str) -> None:
    check_case(random_case(f"sequence {name}", DRAWS[name]))


def test_the_random_cases_hold_every_type() -> None:
    cases = [random_case(f"sequence {name}", draw) for name, draw in DRAWS.items()]
    types = {s.sharding_type for case in cases for s in case.plan.values()}
    assert types == {
        "data_parallel",
        "table_wise",
        "column_wise",
        "row_wise",
        "table_row_wise",
        "grid_shard",
    }
    assert any(0 in sizes and max(sizes) > 0 for case in cases for sizes in case.batch_sizes)
