"""What lies where on a rank alone: there is nothing to plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recsys.sharding.plan import ParameterSharding, ShardingPlan, ShardMetadata
from recsys.training_lookup import DIM_MULTIPLE

#: Where ``recsys.models.click.build_dlrm`` has its tables.
COLLECTION_PATH = "model.sparse_arch.embedding_bag_collection"


def one_rank_plan(arguments: Mapping[str, Any]) -> ShardingPlan:
    """Every table whole on the only rank, with the fused kernel where its width allows it.

    Args:
        arguments: the factory's.
    """
    tables = {
        table["name"]: ParameterSharding(
            sharding_type="table_wise",
            shards=(
                ShardMetadata(
                    shard_offsets=(0, 0),
                    shard_sizes=(table["num_embeddings"], table["embedding_dim"]),
                    rank=0,
                ),
            ),
            compute_kernel="dense" if table["embedding_dim"] % DIM_MULTIPLE else "fused",
        )
        for table in arguments["tables"]
    }
    return ShardingPlan(plan={COLLECTION_PATH: tables})
