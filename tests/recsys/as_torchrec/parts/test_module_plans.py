"""Plans of one module: what is wrong with them is said; their shards are held against TorchRec's in tests/peer."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from recsys import EmbeddingBagCollection
from recsys.as_torchrec.parts.module_plans import (
    ParameterShardingGenerator,
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    get_sharding_constructor_from_type,
    grid_shard,
    row_wise,
    table_wise,
)
from recsys.errors import PlanError
from recsys.sharding.plan.kinds import ShardingType
from recsys.sharding.plan.plan import check_plan
from tests.support.helpers import bag

TABLES = [bag("a", 5, 16, ["f"]), bag("b", 3, 16, ["g"])]


def plan(**generators: ParameterShardingGenerator) -> Any:
    return construct_module_sharding_plan(
        EmbeddingBagCollection(TABLES), generators, local_size=2, world_size=4, device_type="cpu"
    )


def test_a_plan_of_a_module_covers_its_tables() -> None:
    made = plan(a=row_wise(), b=column_wise(ranks=[3, 1]))
    check_plan(TABLES, made, 4)
    # Two rows each: nothing is left for the last rank.
    assert [shard.shard_sizes[0] for shard in made["a"].shards] == [2, 2, 1]
    assert made["a"].ranks == [0, 1, 2, 3]
    check_plan(TABLES, plan(a=data_parallel(), b=grid_shard([1, 0])), 4)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: plan(a=data_parallel()), r"got tables \['a'\], expected \['a', 'b'\]"),
        (lambda: plan(a=table_wise(4), b=data_parallel()), r"table_wise: got ranks \[4\], expected 0 to 3"),
        (lambda: plan(a=column_wise([0, 1, 2]), b=data_parallel()), "got 3, expected a divisor of the 16"),
        (lambda: plan(a=column_wise(None, [8, 4]), b=data_parallel()), "expected a sum of at least the 16"),
        (lambda: plan(a=row_wise(([1, 2], "cpu")), b=data_parallel()), r"numbers of rows with the sum 5"),
        (
            lambda: plan(a=table_wise(0, None, "fused_uvm"), b=data_parallel()),
            "got 'fused_uvm', expected one",
        ),
        (lambda: column_wise(), "ranks, size_per_rank: got none"),
        (lambda: column_wise([0], [8, 8]), "size_per_rank: got 2 sizes"),
        (
            lambda: plan(a=row_wise(num_buckets=2), b=data_parallel()),
            "num_buckets: got 2, expected a divisor of the 5 rows",
        ),
        (lambda: get_sharding_constructor_from_type(ShardingType.TABLE_COLUMN_WISE), "sharding_type: got"),
        (lambda: construct_module_sharding_plan(nn.Linear(2, 2), {}), "module: got Linear, expected one of"),
    ],
)
def test_what_is_wrong_is_said(make: Any, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        make()
