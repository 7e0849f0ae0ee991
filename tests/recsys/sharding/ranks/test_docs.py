"""The type that docs/train/sharding.md adds trains as the unsharded collection does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from recsys import (
    DistributedModelParallel,
    EmbeddingBagCollection,
    EmbeddingBagCollectionSharder,
    EmbOptimType,
    KeyedJaggedTensor,
    ShardingPlan,
)
from recsys.configs import BaseEmbeddingConfig
from recsys.errors import PlanError
from recsys.sharding.plan.plan import ParameterSharding, ShardMetadata, check_plan
from tests.support.helpers import bag
from tests.support.ranks import live_pool

PAGE = Path(__file__).resolve().parents[4] / "docs" / "train" / "sharding.md"
TABLE = bag("t", 8_000, 16, ["f"])
LEARNING_RATE = 0.125


def type_of_the_page(starts: Sequence[int], ranks: Sequence[int]) -> ParameterSharding:
    (code,) = re.findall(r"```python\n(def row_wise_at\(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {
        "BaseEmbeddingConfig": BaseEmbeddingConfig,
        "ParameterSharding": ParameterSharding,
        "Sequence": Sequence,
        "ShardMetadata": ShardMetadata,
    }
    exec(code, names)
    made: ParameterSharding = names["row_wise_at"](TABLE, starts, ranks)
    return made


def batch(rank: int) -> KeyedJaggedTensor:
    """Bags with IDs of every part, none twice."""
    values = torch.tensor([0, 99, 100, 4_999, 5_000, 7_999, 50, 6_000]) + (1000 * rank) % 900
    return KeyedJaggedTensor(["f"], values % 8_000, lengths=torch.tensor([3, 0, 4, 1]))


def outputs_and_weights(rank: int, _world_size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two steps of the sharded and of the whole collection: pairs that should be equal."""
    torch.manual_seed(0)
    whole = EmbeddingBagCollection([TABLE])
    model = DistributedModelParallel(
        EmbeddingBagCollection([TABLE]),
        plan=ShardingPlan(plan={"": {"t": type_of_the_page([0, 100, 5_000], [0, 1, 0])}}),
        sharders=[
            EmbeddingBagCollectionSharder(
                {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LEARNING_RATE}
            )
        ],
    )
    model.load_state_dict(whole.state_dict())
    pairs = []
    optimizer = torch.optim.SGD(whole.parameters(), lr=LEARNING_RATE)
    for _ in range(2):
        found = model(batch(rank)).values()
        expected = whole(batch(rank)).values()
        pairs.append((found.detach(), expected.detach()))
        found.square().mean().backward()
        optimizer.zero_grad()
        expected.square().mean().backward()
        for parameter in whole.parameters():
            dist.all_reduce(parameter.grad, dist.ReduceOp.SUM)
            parameter.grad /= 2
        optimizer.step()
    weight = whole.state_dict()["embedding_bags.t.weight"]
    for shard in model.state_dict()["embedding_bags.t.weight"].local_shards():
        start, size = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]
        pairs.append((shard.tensor, weight[start : start + size]))
    return pairs


def test_the_added_type_trains() -> None:
    found = live_pool(2).run(outputs_and_weights)
    assert [len(pairs) for pairs in found] == [2 + 2, 2 + 1], "rank 0 has two shards"
    for pairs in found:
        for sharded, whole in pairs:
            # Sums of at most four numbers and two steps, in another order.
            torch.testing.assert_close(sharded, whole, rtol=1e-5, atol=1e-7)


def test_the_added_type_is_checked() -> None:
    check_plan([TABLE], {"t": type_of_the_page([0, 100], [0, 1])}, 2)
    with pytest.raises(PlanError, match="exactly once"):
        check_plan([TABLE], {"t": type_of_the_page([1, 100], [0, 1])}, 2)
