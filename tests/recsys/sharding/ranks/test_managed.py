"""Managed tables over ranks: rows that change hands start afresh wherever they lie, as in tables that are not sharded.

Shape letters: D embedding dimension, R rows.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, distributed

from recsys import (
    DistributedModelParallel,
    EmbeddingBagCollection,
    EmbeddingBagCollectionSharder,
    EmbOptimType,
    ShardingPlan,
)
from recsys.managed import (
    LFU_EvictionPolicy,
    ManagedCollisionCollection,
    ManagedCollisionEmbeddingBagCollection,
    MCHManagedCollisionModule,
)
from recsys.sharding.plan.plan import ParameterSharding
from recsys.sharding.plan.sharding_types import column_wise, data_parallel, row_wise, table_wise
from tests.support.helpers import bag, kjt_of
from tests.support.ranks import live_pool

TABLE = bag("t", 9, 16, ["f"])
LEARNING_RATE = 0.5
STEPS = 12
CUTS: dict[str, Callable[[], ParameterSharding]] = {
    "row_wise": lambda: row_wise(TABLE, [1, 0]),
    "column_wise": lambda: column_wise(TABLE, [0, 1]),
    "table_wise": lambda: table_wise(TABLE, 1),
    "data_parallel": lambda: data_parallel(TABLE),
}


def _managed() -> ManagedCollisionEmbeddingBagCollection:
    torch.manual_seed(0)
    mapping = MCHManagedCollisionModule(TABLE.num_embeddings, None, LFU_EvictionPolicy(), eviction_interval=2)
    return ManagedCollisionEmbeddingBagCollection(
        EmbeddingBagCollection([TABLE]),
        ManagedCollisionCollection({"t": mapping}, [TABLE]),
        embeddings_only=True,
    ).train()


def _step(model: torch.nn.Module, rank: int, number: int) -> Tensor:
    # Raw IDs move on, so that rows change hands.
    ids = [10**12 * (number // 3) + i for i in range(3 + 2 * rank)]
    pooled: Tensor = model(kjt_of({"f": [ids, ids[:1], []]})).values()
    (pooled * (1 + rank + number)).sum().backward()
    return pooled.detach()


def trained_beside_whole(rank: int, world_size: int, cut: str) -> tuple[float, float, int]:
    """The largest differences to a copy that is not sharded, of outputs and of weights; how many rows changed hands."""
    whole = _managed()
    whole.managed_collision_collection.set_process_group(distributed.group.WORLD)
    evicted: list[int] = []
    whole.register_eviction_hook(lambda _table, rows: evicted.extend(rows.tolist()))
    sharded = DistributedModelParallel(
        _managed(),
        plan=ShardingPlan(plan={"_embedding_module": {"t": CUTS[cut]()}}),
        sharders=[
            EmbeddingBagCollectionSharder(
                {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LEARNING_RATE}
            )
        ],
    )
    weight = whole.get_parameter("_embedding_module.embedding_bags.t.weight")
    difference = 0.0
    for number in range(STEPS):
        difference = max(
            difference, float((_step(whole, rank, number) - _step(sharded, rank, number)).abs().max())
        )
        assert weight.grad is not None
        distributed.all_reduce(weight.grad)
        with torch.no_grad():
            weight -= LEARNING_RATE * weight.grad / world_size
            weight.grad = None
            for parameter in sharded.parameters():
                if parameter.grad is not None:
                    parameter -= LEARNING_RATE * parameter.grad
                    parameter.grad = None
    found = sharded.state_dict()["_embedding_module.embedding_bags.t.weight"]
    apart = 0.0
    for shard in found.local_shards() if cut != "data_parallel" else []:
        row, column = shard.metadata.shard_offsets
        rows, columns = shard.metadata.shard_sizes
        mine = weight[row : row + rows, column : column + columns]
        apart = max(apart, float((mine - shard.tensor).detach().abs().max()))
    if cut == "data_parallel":
        apart = float((found - weight).detach().abs().max())
    return difference, apart, len(evicted)


@pytest.mark.parametrize("cut", CUTS)
def test_rows_that_change_hands_start_afresh_on_whatever_rank(cut: str) -> None:
    for difference, apart, num_evicted in live_pool(2).run(trained_beside_whole, cut):
        assert num_evicted > 0
        assert difference < 1e-4
        assert apart < 1e-4
