"""Ways to cut a table: the parts cover it exactly once."""

from __future__ import annotations

import pytest

from recsys.errors import PlanError
from recsys.sharding.plan.plan import check_plan
from recsys.sharding.plan.sharding_types import column_wise, row_wise, table_wise
from tests.support.helpers import bag


def test_table_wise() -> None:
    table = bag("t", 10, 20, ["a"])
    cut = table_wise(table, 2)
    assert (cut.sharding_type, cut.ranks) == ("table_wise", [2])
    assert (cut.shards[0].rows, cut.shards[0].columns) == ((0, 10), (0, 20))
    check_plan([table], {"t": cut}, 3)


@pytest.mark.parametrize(
    ("dim", "ranks", "columns"),
    [
        (64, [1, 0], [(0, 32), (32, 64)]),
        (63, [0, 1], [(0, 24), (24, 63)]),
        (24, [2, 0, 1], [(0, 8), (8, 16), (16, 24)]),
        (40, [0, 1, 2], [(0, 8), (8, 24), (24, 40)]),
        (3, [0], [(0, 3)]),
    ],
)
def test_column_wise(dim: int, ranks: list[int], columns: list[tuple[int, int]]) -> None:
    table = bag("t", 10, dim, ["a"])
    cut = column_wise(table, ranks)
    assert [shard.columns for shard in cut.shards] == columns
    assert cut.ranks == list(ranks)
    check_plan([table], {"t": cut}, 3)


@pytest.mark.parametrize(
    ("rows", "ranks", "bounds"),
    [
        (10, [1, 0], [(0, 5), (5, 10)]),
        (10, [0, 1, 2], [(0, 3), (3, 6), (6, 10)]),
        (3, [2, 1, 0], [(0, 1), (1, 2), (2, 3)]),
        (1, [1], [(0, 1)]),
        (7, [0, 0], [(0, 3), (3, 7)]),
    ],
)
def test_row_wise(rows: int, ranks: list[int], bounds: list[tuple[int, int]]) -> None:
    table = bag("t", rows, 8, ["a"])
    cut = row_wise(table, ranks)
    assert [shard.rows for shard in cut.shards] == bounds
    assert cut.ranks == list(ranks)
    check_plan([table], {"t": cut}, 3)


def test_more_parts_than_there_are() -> None:
    with pytest.raises(
        PlanError, match=r"table 't': cannot cut 15 columns into 2 parts, expected 1 to 1 \(mult"
    ):
        column_wise(bag("t", 4, 15, ["a"]), [0, 1])
    with pytest.raises(PlanError, match="table 't': cannot cut 2 rows into 3 parts, expected 1 to 2"):
        row_wise(bag("t", 2, 8, ["a"]), [0, 1, 2])
    with pytest.raises(PlanError, match="into 0 parts"):
        row_wise(bag("t", 2, 8, ["a"]), [])
