"""Plans with many sharding types for the tables of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from recsys.configs import EmbeddingBagConfig
from recsys.data.examples import Dataset
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.plan.sharding_types import column_wise, data_parallel, row_wise, table_wise

#: The path of the pooled tables' collection in the models, and that of a DIN's history and target.
COLLECTION_PATH = "model.sparse_arch.embedding_bag_collection"
SEQUENCES_PATH = "model.embedding_collection"
MIXED = ("rw", "cw", "tw", "dp")


def mixed_plan(
    dataset: Dataset,
    embedding_dim: int,
    kinds: Sequence[str] = MIXED,
    world_size: int = 2,
    unpooled: str | None = None,
) -> ShardingPlan:
    """Row-wise, column-wise, table-wise and data-parallel tables, in turn, or the given kinds of these.

    Args:
        dataset: its tables are placed.
        embedding_dim: of all tables.
        kinds: "rw", "cw", "tw" and "dp".
        world_size: W.
        unpooled: the table of a DIN's history and target.
    """
    ranks = list(range(world_size))
    tables = {}
    for number, (spec, kind) in enumerate(zip(dataset.tables, cycle(kinds))):
        table = EmbeddingBagConfig(
            name=spec.name,
            num_embeddings=spec.num_embeddings,
            embedding_dim=embedding_dim,
            feature_names=list(spec.feature_names),
        )
        if kind == "rw":
            tables[spec.name] = row_wise(table, ranks)
        elif kind == "cw":
            tables[spec.name] = column_wise(table, ranks)
        elif kind == "tw":
            tables[spec.name] = table_wise(table, (number + 1) % world_size)
        else:
            tables[spec.name] = data_parallel(table)
    plan = {COLLECTION_PATH: tables}
    if unpooled is not None:
        plan[SEQUENCES_PATH] = {unpooled: tables.pop(unpooled)}
    return ShardingPlan(plan=plan)
