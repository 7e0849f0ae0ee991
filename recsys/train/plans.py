"""Which shard lies where: from a file, for one rank, or from the planner."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys.errors import PlanError
from recsys.sharding.plan import ParameterSharding, ShardingPlan, ShardMetadata
from recsys.training_lookup import DIM_MULTIPLE

#: Where ``recsys.models.click.build_dlrm`` has its tables.
COLLECTION_PATH = "model.sparse_arch.embedding_bag_collection"


def read_plan(path: Path) -> ShardingPlan:
    """A plan from a JSON file, as ``ShardingPlan.to_json`` gives it.

    Raises:
        PlanError: the file is missing, not JSON, or no plan.
    """
    if not path.is_file():
        raise PlanError(f"plan {str(path)!r}: there is no such file")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise PlanError(f"plan {path.name!r}: not JSON ({str(error)[:80]})") from None
    try:
        return ShardingPlan.from_json(data)
    except PlanError as error:
        raise PlanError(f"plan {path.name!r}: {error}") from None


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
