"""Plans are plain data: they survive JSON, and what is wrong with one is named."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from torch.distributed._shard.metadata import ShardMetadata as TorchShardMetadata
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec

from recsys.configs import DataType
from recsys.errors import PlanError
from recsys.quant import QuantEmbeddingBagCollection
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.kinds import CacheParams
from recsys.sharding.plan.plan import (
    EmbeddingModuleShardingPlan,
    ParameterSharding,
    ShardingPlan,
    ShardMetadata,
    check_plan,
)
from recsys.sharding.plan.sharding_types import column_wise, data_parallel, row_wise, table_wise
from tests.support.helpers import bag, random_case

CASE = random_case(random.Random(5))
TABLE = next(t for t in CASE.tables)


def plan() -> ShardingPlan:
    return ShardingPlan(plan={"": CASE.plan, "sparse.ebc": CASE.plan})


def test_a_plan_survives_json() -> None:
    text = json.dumps(plan().to_json())
    assert ShardingPlan.from_json(json.loads(text)) == plan()
    assert ShardingPlan.from_json({}) == ShardingPlan()


def test_what_a_plan_tells() -> None:
    assert plan().of("sparse.ebc") == CASE.plan
    assert plan().ranks() == {rank for sharding in CASE.plan.values() for rank in sharding.ranks}
    with pytest.raises(PlanError, match=r"plan: missing collection 'other', got \['', 'sparse.ebc'\]"):
        plan().of("other")


GOOD = {
    "": {
        "t": {
            "sharding_type": "table_wise",
            "shards": [{"shard_offsets": [0, 0], "shard_sizes": [4, 8], "rank": 0}],
        }
    }
}


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    data = deepcopy(GOOD)
    change(data)
    return data


def shard_of(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = data[""]["t"]["shards"][0]
    return found


WRONG_JSON: list[tuple[str, Any, str]] = [
    ("no object", [], "plan: got list, expected an object"),
    ("no tables", {"": 3}, r"plan\[''\]: got int, expected an object"),
    ("no table", {"": {"t": 3}}, r"plan\[''\]\['t'\].shards: missing"),
    ("no shards", changed(lambda d: d[""]["t"].pop("shards")), r"\['t'\].shards: missing"),
    ("shards", changed(lambda d: d[""]["t"].update(shards=3)), r"\['t'\].shards: got '3', expected a list"),
    ("no type", changed(lambda d: d[""]["t"].pop("sharding_type")), "sharding_type: missing"),
    (
        "type",
        changed(lambda d: d[""]["t"].update(sharding_type="diagonal")),
        "sharding_type: got 'diagonal', expected one of data_parallel, table_wise",
    ),
    ("no rank", changed(lambda d: shard_of(d).pop("rank")), r"shards\[0\].rank: missing"),
    ("rank", changed(lambda d: shard_of(d).update(rank=-1)), r"shards\[0\].rank: got '-1'"),
    ("rank as text", changed(lambda d: shard_of(d).update(rank="0")), r"shards\[0\].rank: got '0'"),
    ("rank as truth", changed(lambda d: shard_of(d).update(rank=True)), r"shards\[0\].rank: got 'True'"),
    (
        "offsets",
        changed(lambda d: shard_of(d).update(shard_offsets=[0])),
        r"shard_offsets: got \[0\], expected two",
    ),
    ("sizes", changed(lambda d: shard_of(d).update(shard_sizes=[4, -8])), r"shard_sizes: got \[4, -8\]"),
    ("float sizes", changed(lambda d: shard_of(d).update(shard_sizes=[4.0, 8])), "shard_sizes: got"),
    ("no sizes", changed(lambda d: shard_of(d).pop("shard_sizes")), "shard_sizes: missing"),
    ("huge offsets", changed(lambda d: shard_of(d).update(shard_offsets=[2**63, 0])), "shard_offsets: got"),
]


@pytest.mark.parametrize(("data", "message"), [w[1:] for w in WRONG_JSON], ids=[w[0] for w in WRONG_JSON])
def test_json_that_is_no_plan(data: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        ShardingPlan.from_json(data)


def test_the_json_that_the_wrong_ones_differ_from_is_right() -> None:
    assert ShardingPlan.from_json(GOOD).of("")["t"].ranks == [0]


T, U = (replace(TABLE, name=name, num_embeddings=10, embedding_dim=16) for name in "tu")


def cut(*rectangles: tuple[int, int, int, int]) -> ParameterSharding:
    shards = [
        ShardMetadata(shard_offsets=(row, column), shard_sizes=(rows, columns), rank=0)
        for row, column, rows, columns in rectangles
    ]
    return ParameterSharding(sharding_type="row_wise", shards=tuple(shards))


WRONG_PLANS: list[tuple[str, dict[str, ParameterSharding], str]] = [
    ("missing table", {"t": table_wise(T, 0)}, r"missing tables \['u'\], unknown tables \[\]"),
    (
        "unknown table",
        {"t": table_wise(T, 0), "u": table_wise(U, 0), "v": table_wise(U, 0)},
        r"missing tables \[\], unknown tables \['v'\]",
    ),
    (
        "rank",
        {"t": table_wise(T, 2)},
        r"got ranks \[2\], expected 0 to 1 \(ranks or devices: 2\): it is a plan for 3; make one for 2, or use 3",
    ),
    (
        "negative rank",
        {"t": table_wise(T, -1)},
        r"plan\['t'\]: got ranks \[-1\], expected 0 to 1 \(ranks or devices: 2\)$",
    ),
    ("no shards", {"t": cut()}, r"plan\['t'\]: shards' columns \[\] do not cover the table's 10 × 16"),
    ("rows missing", {"t": cut((0, 0, 5, 16))}, r"rows \[\(0, 5\)\] at columns \(0, 16\) do not cover"),
    ("rows twice", {"t": cut((0, 0, 6, 16), (5, 0, 5, 16))}, "rows .* do not cover"),
    ("rows beyond", {"t": cut((0, 0, 5, 16), (5, 0, 6, 16))}, "rows .* do not cover"),
    ("hole", {"t": cut((0, 0, 4, 16), (5, 0, 5, 16))}, "rows .* do not cover"),
    ("no rows", {"t": cut((0, 0, 0, 16), (0, 0, 10, 16))}, "rows .* do not cover"),
    ("columns missing", {"t": cut((0, 0, 10, 8))}, r"columns \[\(0, 8\)\] do not cover"),
    ("columns overlap", {"t": cut((0, 0, 10, 9), (0, 8, 10, 8))}, "columns .* do not cover"),
    (
        "columns differ by row",
        {"t": cut((0, 0, 5, 16), (5, 0, 5, 8), (5, 8, 5, 8))},
        "columns .* do not cover",
    ),
]


@pytest.mark.parametrize(("tables", "message"), [w[1:] for w in WRONG_PLANS], ids=[w[0] for w in WRONG_PLANS])
def test_plans_that_do_not_fit(tables: dict[str, ParameterSharding], message: str) -> None:
    full = tables if "table" in message and "missing" in message else {"u": table_wise(U, 1)} | tables
    with pytest.raises(PlanError, match=message):
        check_plan([T, U], full, 2)


@pytest.mark.parametrize(
    "sharding",
    [
        table_wise(T, 1),
        column_wise(T, [1, 0]),
        row_wise(T, [0, 1]),
        cut((5, 0, 5, 16), (0, 0, 5, 16)),
        cut((0, 8, 10, 8), (0, 0, 4, 8), (4, 0, 6, 8)),
    ],
    ids=["table", "column", "row", "in any order", "grid"],
)
def test_plans_that_fit(sharding: ParameterSharding) -> None:
    check_plan([T], {"t": sharding}, 2)


def test_sharding_checks_its_plan() -> None:
    case = random_case(random.Random(1))
    quantized = case.quantized()
    assert isinstance(quantized, QuantEmbeddingBagCollection) != case.sequence
    with pytest.raises(PlanError, match="plan: missing tables"):
        quantized.shard({}, ShardingEnv.over_devices(["cpu"]))


WRONG_DEVICES: list[tuple[list[str], str]] = [
    ([], "devices: got none"),
    (["gpu:0"], "devices: got 'gpu:0', expected cpu or cuda:N"),
    (["mps"], "devices: got 'mps', expected cpu or cuda:N"),
]


@pytest.mark.parametrize(("devices", "message"), WRONG_DEVICES, ids=["none", "unknown", "of another kind"])
def test_devices_that_are_none(devices: list[str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        ShardingEnv.over_devices(devices)


def test_devices_need_not_exist() -> None:
    env = ShardingEnv.over_devices(["cpu:0", "cuda", "cuda:7"])
    assert [str(d) for d in env.devices] == ["cpu", "cuda:0", "cuda:7"]
    assert env.world_size == 3


def test_a_plan_prints_a_line_per_shard() -> None:
    tables = [bag(name, 10, 16, [name]) for name in ("whole", "cut", "copied")]
    plan = ShardingPlan(
        plan={
            "ebc": {
                "whole": table_wise(tables[0], 1),
                "cut": row_wise(tables[1], [0, 1]),
                "copied": data_parallel(tables[2]),
            }
        }
    )
    assert str(plan).splitlines() == [
        "collection 'ebc'",
        "table   sharding type  compute kernel  rank  rows  columns",
        "whole   table_wise     fused           1     0:10  0:16",
        "cut     row_wise       fused           0     0:5   0:16",
        "cut     row_wise       fused           1     5:10  0:16",
        "copied  data_parallel  dense           all   all   all",
    ]


def test_a_sharding_is_made_of_torchs_spec_and_gives_it_back() -> None:
    spec = EnumerableShardingSpec(
        [
            TorchShardMetadata([0, 0], [6, 16], "rank:1/cuda:1"),
            TorchShardMetadata([6, 0], [4, 16], "rank:0/cuda:0"),
            TorchShardMetadata([10, 0], [0, 16], "rank:2/cuda:2"),
        ]
    )
    made = ParameterSharding("row_wise", "fused", [1, 0, 2], spec)
    shards = [
        ShardMetadata(shard_offsets=(0, 0), shard_sizes=(6, 16), rank=1),
        ShardMetadata(shard_offsets=(6, 0), shard_sizes=(4, 16), rank=0),
    ]
    assert made.shards == tuple(shards)
    assert (made.ranks, made.sharding_spec) == ([1, 0, 2], spec)
    assert made.shards[0].placement == "rank:1/cuda:1"
    again = ParameterSharding("row_wise", "fused", shards=shards)
    assert made == again
    assert again.ranks == [1, 0]
    assert isinstance(again.sharding_spec, EnumerableShardingSpec)
    assert [str(s.placement) for s in again.sharding_spec.shards] == ["rank:1/cpu", "rank:0/cpu"]
    check_plan([bag("t", 10, 16, ["f"])], {"t": made}, 2)
    copies = ParameterSharding("data_parallel", "dense", [0, 1])
    assert (copies.sharding_spec, copies.shards, copies.ranks) == (None, (), [0, 1])
    assert copies != made


def test_shardings_that_do_not_exist_here() -> None:
    with pytest.raises(PlanError, match="sharding_spec: got ChunkShardingSpec, expected an Enumerable"):
        ParameterSharding("row_wise", "fused", [0], ChunkShardingSpec(0, ["rank:0/cpu"]))
    with pytest.raises(PlanError, match=r"output_dtype: got FP16"):
        ParameterSharding("row_wise", "fused", output_dtype=DataType.FP16)
    with pytest.raises(PlanError, match="key_value_params: got some"):
        ParameterSharding("row_wise", "fused", key_value_params=object())
    nowhere = EnumerableShardingSpec([TorchShardMetadata([0, 0], [6, 16])])
    with pytest.raises(PlanError, match=r"sharding_spec.shards\[0\]: got .*, expected .* a rank"):
        ParameterSharding("row_wise", "fused", None, nowhere)


def test_a_plan_answers_for_a_module_and_keeps_load_factors() -> None:
    cached = ParameterSharding(
        "table_wise",
        "fused_uvm_caching",
        cache_params=CacheParams(load_factor=0.4),
        shards=table_wise(bag("t", 10, 16, ["f"]), 0).shards,
    )
    plan = ShardingPlan({"ebc": EmbeddingModuleShardingPlan(t=cached)})
    assert plan.get_plan_for_module("ebc") == {"t": cached}
    assert plan.get_plan_for_module("other") is None
    assert "table_wise     fused_uvm_caching  0" in str(plan.get_plan_for_module("ebc"))
    assert ShardingPlan.from_json(plan.to_json()) == plan
    wrong = plan.to_json()
    wrong["ebc"]["t"]["cache_load_factor"] = 2
    with pytest.raises(PlanError, match=r"cache_load_factor: got 2, expected a number above 0"):
        ShardingPlan.from_json(wrong)


def test_ranks_of_torchrecs_constructors() -> None:
    env = ShardingEnv.from_local(4, 1)
    assert (env.world_size, env.rank, env.process_group, env.device.type) == (4, 1, None, "cpu")
    with pytest.raises(PlanError, match="rank: got 4, expected 0 to 3"):
        ShardingEnv(4, 4)
    with pytest.raises(PlanError, match="output_dtensor: got True"):
        ShardingEnv(4, 0, None, True)
