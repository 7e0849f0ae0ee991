"""What lies where on a rank alone: there is nothing to plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from recsys.configs import BaseEmbeddingConfig
from recsys.sharding.cuts import table_wise
from recsys.sharding.plan import ShardingPlan
from recsys.training_lookup import DIM_MULTIPLE

#: Where ``recsys.models.click.build_dlrm`` has its tables.
COLLECTION_PATH = "model.sparse_arch.embedding_bag_collection"


def one_rank_plan(arguments: Mapping[str, Any]) -> ShardingPlan:
    """Every table whole on the only rank, with the fused kernel where its width allows it.

    Args:
        arguments: the factory's.
    """
    tables = {}
    for table in arguments["tables"]:
        config = BaseEmbeddingConfig(table["num_embeddings"], table["embedding_dim"], table["name"])
        kernel = "dense" if config.embedding_dim % DIM_MULTIPLE else "fused"
        tables[config.name] = replace(table_wise(config, 0), compute_kernel=kernel)
    return ShardingPlan(plan={COLLECTION_PATH: tables})
