"""TorchRec's sharders of managed collections: tables and mappings are sharded together, by a plan of the collection."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed, nn

from recsys import (
    DistributedModelParallel,
    EmbeddingBagCollection,
    EmbeddingBagCollectionSharder,
    EmbOptimType,
    ShardingEnv,
    ShardingPlan,
)
from recsys.as_torchrec.parts.managed_sharders import (
    ManagedCollisionCollectionSharder,
    ManagedCollisionEmbeddingBagCollectionSharder,
)
from recsys.as_torchrec.parts.module_plans import construct_module_sharding_plan, row_wise
from recsys.managed import (
    HashZchManagedCollisionModule,
    ManagedCollisionCollection,
    ManagedCollisionEmbeddingBagCollection,
)
from tests.support.helpers import bag, kjt_of
from tests.support.ranks import live_pool

TABLE, OTHER = bag("t", 12, 4, ["f"]), bag("o", 5, 4, ["g"])
K = 3


class _Model(nn.Module):
    """A managed collection beside a plain one."""

    def __init__(self) -> None:
        super().__init__()
        mapping = ManagedCollisionCollection({"t": HashZchManagedCollisionModule(12, None, K)}, [TABLE])
        self.managed = ManagedCollisionEmbeddingBagCollection(EmbeddingBagCollection([TABLE]), mapping)
        self.plain = EmbeddingBagCollection([OTHER])


def shards_of(rank: int, world_size: int) -> dict[str, Any]:
    """What a rank holds of the mapping, by a whole model and by the collection alone; which collections are sharded."""
    del rank
    inner = EmbeddingBagCollectionSharder({"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.5})
    sharder = ManagedCollisionEmbeddingBagCollectionSharder(inner, ManagedCollisionCollectionSharder())
    model = _Model().train()
    plan = construct_module_sharding_plan(
        model.managed, {"t": row_wise(None, "fused", K)}, sharder, world_size, world_size, "cpu"
    )
    whole = DistributedModelParallel(model, plan=ShardingPlan(plan={"managed": plan}), sharders=[sharder])
    alone = sharder.shard(
        _Model().managed, plan, ShardingEnv.from_process_group(distributed.group.WORLD)
    ).train()
    ids = kjt_of({"f": [[5, 7, 9, 5]]})
    alone(ids)[0].values()
    parts = [
        part.managed_collision_collection.managed_collision_modules()["t"]
        for part in (whole.module.managed, alone)
    ]
    return {
        "buckets": [module.part.buckets for module in parts],
        "sharded": list(whole.sharded_modules()),
        "fused": whole.fused_optimizer.param_groups[0]["lr"],
        "owners": [raw_id for raw_id in parts[1].owners()[0].tolist() if raw_id >= 0],
    }


def test_tables_and_mappings_are_sharded_together() -> None:
    torch.manual_seed(0)
    results = live_pool(2).run(shards_of)
    # Three buckets on two ranks: the first one has two.
    assert [found["buckets"] for found in results] == [[(0, 2)] * 2, [(2, 3)] * 2]
    assert [found["owners"] for found in results] == [[7, 9], [5]]
    for found in results:
        assert found["sharded"] == ["managed._embedding_module"], (
            "a plain collection needs a sharder of its own"
        )
        assert found["fused"] == 0.5
