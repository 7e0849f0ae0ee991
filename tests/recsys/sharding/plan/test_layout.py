"""From tables and a plan to slots, groups and pieces: plain data, checked as such."""

from __future__ import annotations

import random

import pytest

from recsys import PoolingType
from recsys.kernels.bounds import INT64_MAX
from recsys.sharding.plan.layout import make_layout, pooled_pieces
from recsys.sharding.plan.sharding_types import column_wise, row_wise, table_wise
from tests.support.helpers import bag, random_case, sequence


def test_one_device_is_one_call_per_pooling() -> None:
    tables = [bag("t", 4, 8, ["a"]), bag("u", 4, 8, ["b"], "MEAN"), bag("v", 4, 8, ["c"])]
    layout = make_layout(tables, {t.name: table_wise(t, 0) for t in tables}, 1)
    assert [(g.rank, g.pooling, [s.pair for s in g.slots]) for g in layout.groups] == [
        (0, PoolingType.SUM, [0, 2]),
        (0, PoolingType.MEAN, [1]),
    ]
    assert layout.entries == ()
    assert layout.features == ["a", "b", "c"]


def test_kernels_that_pool_by_slot_are_called_once() -> None:
    tables = [bag("t", 4, 16, ["a"]), bag("u", 4, 16, ["b"], "MEAN"), bag("v", 4, 16, ["c"])]
    plan = {table.name: table_wise(table, 0) for table in tables}
    assert [g.pooling for g in make_layout(tables, plan, 1).groups] == [PoolingType.SUM, PoolingType.MEAN]
    (group,) = make_layout(tables, plan, 1, mixed={"t", "u", "v"}).groups
    assert group.poolings == (PoolingType.SUM, PoolingType.MEAN, PoolingType.SUM)


def test_row_shards_share_an_entry_and_are_summed() -> None:
    table = bag("t", 10, 8, ["a", "b"], "MEAN")
    layout = make_layout([table], {"t": row_wise(table, [2, 0])}, 3)
    assert [entry.bounds for entry in layout.entries] == [(0, 5, INT64_MAX)] * 2
    assert [(g.rank, g.pooling) for g in layout.groups] == [(0, PoolingType.SUM), (2, PoolingType.SUM)]
    assert [slot.row_start for _, slot in layout.slots] == [5, 5, 0, 0]
    assert all(layout.divides_mean(slot) for _, slot in layout.slots)
    pieces = pooled_pieces(layout)
    assert [(p.sources, p.width, p.mean_of) for p in pieces] == [
        (((0, 0), (1, 0)), 8, 0),
        (((0, 8), (1, 8)), 8, 1),
    ]


def test_column_shards_lie_side_by_side() -> None:
    table = bag("t", 10, 24, ["a"])
    layout = make_layout([table], {"t": column_wise(table, [1, 0])}, 2)
    assert [(slot.rank, slot.columns) for _, slot in layout.slots] == [(0, (8, 24)), (1, (0, 8))]
    assert [(p.sources, p.width) for p in pooled_pieces(layout)] == [(((1, 0),), 8), (((0, 0),), 16)]


def test_neighbours_of_one_group_are_one_piece() -> None:
    tables = [bag(f"t{i}", 4, 8 + i * 8, [f"f{i}"]) for i in range(3)]
    layout = make_layout(tables, {t.name: table_wise(t, 0) for t in tables}, 1)
    assert [(p.sources, p.width) for p in pooled_pieces(layout)] == [(((0, 0),), 48)]


def test_sequences_are_called_by_padded_dim() -> None:
    tables = [sequence("t", 4, 24, ["a"]), sequence("u", 4, 24, ["a", "b"])]
    plan = {"t": column_wise(tables[0], [0, 0]), "u": table_wise(tables[1], 0)}
    layout = make_layout(tables, plan, 1)
    assert [len(g.slots) for g in layout.groups] == [1, 1, 2]
    assert [pair.name for pair in layout.pairs] == ["a@t", "a@u", "b"]


@pytest.mark.parametrize("seed", range(30))
def test_every_column_of_every_pair_comes_out_once_and_in_order(seed: int) -> None:
    case = random_case(random.Random(seed))
    layout = make_layout(case.tables, case.plan, case.world_size)
    assert sorted(slot.rank for _, slot in layout.slots) == sorted(
        shard.rank for pair in layout.pairs for shard in case.plan[case.tables[pair.table].name].shards
    )
    covered = {p: [False] * case.tables[pair.table].embedding_dim for p, pair in enumerate(layout.pairs)}
    for _, slot in layout.slots:
        if slot.part == 0:
            for column in range(*slot.columns):
                assert not covered[slot.pair][column]
                covered[slot.pair][column] = True
    assert all(all(columns) for columns in covered.values())
    if not case.sequence:
        widths = sum(piece.width for piece in pooled_pieces(layout))
        assert widths == sum(case.tables[pair.table].embedding_dim for pair in layout.pairs)
