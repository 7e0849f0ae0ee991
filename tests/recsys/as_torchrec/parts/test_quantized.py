"""Quantized models sharded over the devices of one process."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.as_torchrec.parts.quantized import shard_quant_model
from recsys.errors import PlanError
from recsys.inference.quantize import quantize_inference_model
from recsys.quant import QuantEmbeddingBagCollection
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.plan.sharding_types import row_wise, table_wise
from recsys.sharding.sharded import ShardedEmbeddingBagCollection, ShardedEmbeddingCollection
from tests.support.helpers import bag, kjt_of, sequence

TABLES = [bag("t", 40, 8, ["a"]), bag("u", 30, 8, ["b"])]
ROWS = [sequence("v", 20, 8, ["a"])]
BATCH = kjt_of({"a": [[1, 19], []], "b": [[3], [29, 4]]})


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(TABLES)
        self.rows = EmbeddingCollection(ROWS)
        self.over = nn.Linear(16, 1)

    def forward(self, features: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        return self.over(self.bags(features).values()), self.rows(features)["a"].values()


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return quantize_inference_model(Model())


def same_answers(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one(BATCH), other(BATCH), strict=True))


def test_tables_are_placed(model: nn.Module) -> None:
    sharded, plan = shard_quant_model(model, world_size=2, compute_device="cpu")
    assert isinstance(sharded.bags, ShardedEmbeddingBagCollection)
    assert isinstance(sharded.rows, ShardedEmbeddingCollection)
    assert isinstance(model.bags, QuantEmbeddingBagCollection)
    assert {shard.rank for table in plan.of("bags").values() for shard in table.shards} == {0, 1}
    assert same_answers(sharded, model)


def test_a_table_that_fits_on_no_device_is_cut(model: nn.Module) -> None:
    _, plan = shard_quant_model(model, 2, "cpu", ddr_cap=545)
    assert "row_wise" in {table.sharding_type for tables in plan.plan.values() for table in tables.values()}
    with pytest.raises(PlanError):
        shard_quant_model(model, 2, "cpu", ddr_cap=100)


def test_a_plan_says_what_goes_where(model: nn.Module) -> None:
    given = ShardingPlan(
        plan={
            "bags": {"t": row_wise(TABLES[0], [1, 0]), "u": table_wise(TABLES[1], 1)},
            "rows": {"v": table_wise(ROWS[0], 1)},
        }
    )
    sharded, plan = shard_quant_model(model, 2, "cpu", sharding_plan=given)
    assert plan is given
    assert same_answers(sharded, model)


def test_sharders_say_which_collections(model: nn.Module) -> None:
    class Sharder:
        module_type = QuantEmbeddingBagCollection

    sharded, plan = shard_quant_model(model, 2, "cpu", sharders=[Sharder()])
    assert list(plan.plan) == ["bags"]
    assert type(sharded.rows) is type(model.rows)


def test_a_bare_collection(model: nn.Module) -> None:
    sharded, _ = shard_quant_model(model.bags, 1, "cpu")
    assert isinstance(sharded, ShardedEmbeddingBagCollection)


def test_what_is_wrong_is_named(model: nn.Module) -> None:
    with pytest.raises(PlanError, match="Model holds no quantized collection"):
        shard_quant_model(Model(), 1, "cpu")
    with pytest.raises(PlanError, match="constraints: got some, expected None"):
        shard_quant_model(model, 1, "cpu", constraints={})
