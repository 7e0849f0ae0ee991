"""Ranks with rows of their own, as devices other than the host have them: read back here, number by number."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from recsys import DataType, EmbeddingBagCollection
from recsys.inputs.signature import IdPolicy
from recsys.quant import QuantEmbeddingBagCollection, float_weights, stored_table
from recsys.rows.layout import copy_blocks, lay_out
from recsys.rows.quantize import memory_writer, plan_blob, store_table
from recsys.sharding.plan.device_rows import DeviceRows, device_layouts, empty, fill, table_path
from recsys.sharding.plan.plan import ParameterSharding
from recsys.sharding.plan.sharding_types import column_wise, row_wise, table_wise
from recsys.sharding.sharded import ShardedEmbeddingBagCollection, ShardedOptions
from tests.support.helpers import bag, kjt_of, rounding

HOST, ELSEWHERE = torch.device("cpu"), torch.device("meta")
TABLES = [
    replace(bag("t", 30, 64, ["a", "b"]), data_type=DataType.INT8),
    replace(bag("u", 20, 40, ["c", "a"], "MEAN"), data_type=DataType.INT4),
    replace(bag("v", 10, 16, ["b"]), data_type=DataType.FP16),
]
POLICIES = {"t": IdPolicy.ZERO, "u": IdPolicy.ZERO, "v": IdPolicy.HASH}
# With IDs that read the row of zeros behind each table's last.
BATCH = kjt_of(
    {"a": [[1, 2, 30], [19, -1, 10], [29]], "b": [[9, 99], [0, 4], []], "c": [[0, 19, 20], [], [2**40, 3]]}
)
PLANS: dict[str, dict[str, ParameterSharding]] = {
    "table": {t.name: table_wise(t, i) for i, t in enumerate(TABLES)},
    "column": {t.name: column_wise(t, [2, 0]) for t in TABLES},
    "row": {t.name: row_wise(t, [2, 0, 1]) for t in TABLES},
    "one rank": {t.name: row_wise(t, [1, 1]) for t in TABLES},
}


@pytest.mark.parametrize("alignment", [1, 16], ids=["packed", "aligned"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_ranks_own_rows_give_the_same_predictions(
    plan: dict[str, ParameterSharding], alignment: int
) -> None:
    torch.manual_seed(0)
    module = EmbeddingBagCollection([replace(t, data_type=DataType.FP32) for t in TABLES])
    options = ShardedOptions(path="in.model", id_policies=POLICIES)
    whole = QuantEmbeddingBagCollection.from_float(
        module, table_data_types={t.name: t.data_type for t in TABLES}, options=options
    )
    stored = [stored_table(t, "in.model", plan[t.name], POLICIES[t.name]) for t in TABLES]
    source = plan_blob(stored)
    blob = torch.zeros(source.num_bytes, dtype=torch.uint8)
    for table, weight in zip(stored, float_weights(module).values(), strict=True):
        store_table(weight.detach(), table, source, memory_writer(blob))
    ranks = []
    for layout in device_layouts(source, {"in.model": plan}, [ELSEWHERE] * 3):
        aligned = lay_out([replace(block, row_alignment=alignment) for block in layout.blocks])
        rows = copy_blocks(source, blob, aligned, HOST)
        ranks.append(DeviceRows(device=HOST, layout=aligned, rows=rows))
    sharded = ShardedEmbeddingBagCollection.over_devices(TABLES, plan, ranks, options)
    answer, expected = sharded(BATCH), whole(BATCH)
    assert answer.keys() == expected.keys()
    atol = rounding(whole.dequantize(), BATCH)
    torch.testing.assert_close(answer.values(), expected.values(), rtol=0, atol=atol)


def test_rows_are_aligned_as_the_device_wants_them() -> None:
    source = plan_blob([stored_table(t, "", table_wise(t, 0), IdPolicy.REJECT) for t in TABLES])
    devices = [torch.device("cuda:0"), HOST, torch.device("cuda:1")]
    first, host, last = device_layouts(source, {"": PLANS["table"]}, devices)
    assert host is source
    assert {block.row_alignment for block in [*first.blocks, *last.blocks]} == {16}
    assert [(block.table, block.row_bytes) for block in first.blocks] == [("t", 80)]
    assert [(block.table, block.row_bytes) for block in last.blocks] == [("v", 32)]


def test_ranks_on_the_host_read_the_source_in_place() -> None:
    source = plan_blob([stored_table(t, "", table_wise(t, 0), IdPolicy.REJECT) for t in TABLES])
    blob = torch.zeros(source.num_bytes, dtype=torch.uint8)
    layouts = device_layouts(source, {"": PLANS["table"]}, [HOST, ELSEWHERE, HOST])
    first, other, last = fill(source, blob, layouts, [HOST, ELSEWHERE, HOST])
    assert first.rows is last.rows is blob
    assert (other.rows.device.type, other.rows.numel()) == ("meta", layouts[1].num_bytes)


def test_rows_that_are_set_later_are_shared_on_the_host() -> None:
    source = plan_blob([stored_table(t, "", table_wise(t, 0), IdPolicy.REJECT) for t in TABLES])
    layouts = device_layouts(source, {"": PLANS["table"]}, [HOST, ELSEWHERE, HOST])
    first, other, last = empty(layouts, [HOST, ELSEWHERE, HOST])
    assert first.rows is last.rows
    assert other.rows is not first.rows
    assert first.rows.numel() == other.rows.numel() == 0


def test_paths() -> None:
    assert table_path("", "t") == "t"
    assert table_path("sparse.ebc", "t") == "sparse.ebc.t"
