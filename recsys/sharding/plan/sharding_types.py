"""The sharding types: each divides a table into rectangles. Routing and assembly follow from the rectangles.

Shape letters: D embedding dimension, R rows, W world size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recsys.configs import BaseEmbeddingConfig
from recsys.errors import PlanError
from recsys.sharding.plan.plan import DATA_PARALLEL, ParameterSharding, ShardMetadata

#: Column cuts at multiples of this suit every row type and keep rows of halves 16-byte aligned.
COLUMN_MULTIPLE = 8


def data_parallel(table: BaseEmbeddingConfig) -> ParameterSharding:
    """Return a copy of the whole table on every rank; gradients are averaged over the ranks."""
    del table
    return ParameterSharding(sharding_type=DATA_PARALLEL, shards=())


def table_wise(table: BaseEmbeddingConfig, rank: int) -> ParameterSharding:
    """Return the whole table on one rank."""
    sizes = (table.num_embeddings, table.embedding_dim)
    shard = ShardMetadata(shard_offsets=(0, 0), shard_sizes=sizes, rank=rank)
    return ParameterSharding(sharding_type="table_wise", shards=(shard,))


def without_replicas(
    tables: Sequence[BaseEmbeddingConfig], plan: Mapping[str, ParameterSharding]
) -> dict[str, ParameterSharding]:
    """Return the plan for one batch: replicated tables have only the copy on the first rank."""
    return {
        table.name: table_wise(table, 0) if plan[table.name].is_replicated else plan[table.name]
        for table in tables
    }


def column_wise(table: BaseEmbeddingConfig, ranks: Sequence[int]) -> ParameterSharding:
    """Divide columns into equal parts (multiples of 8; the last takes the rest), one for each rank.

    Raises:
        PlanError: There are more ranks than parts.
    """
    parts = column_parts(table, len(ranks))
    shards = [
        ShardMetadata(shard_offsets=(0, start), shard_sizes=(table.num_embeddings, end - start), rank=rank)
        for (start, end), rank in zip(parts, ranks, strict=True)
    ]
    return ParameterSharding(sharding_type="column_wise", shards=tuple(shards))


def row_wise(table: BaseEmbeddingConfig, ranks: Sequence[int]) -> ParameterSharding:
    """Divide rows into equal parts (the last takes the rest), one for each rank.

    Raises:
        PlanError: There are more ranks than rows.
    """
    shards = _row_shards(table, (0, table.embedding_dim), ranks)
    return ParameterSharding(sharding_type="row_wise", shards=tuple(shards))


def table_row_wise(table: BaseEmbeddingConfig, host: int, local_world_size: int) -> ParameterSharding:
    """Divide rows into equal parts over the ranks of one host; partial sums are added inside the host.

    Raises:
        PlanError: The host has more ranks than the table has rows.
    """
    shards = _row_shards(table, (0, table.embedding_dim), host_ranks(host, local_world_size))
    return ParameterSharding(sharding_type="table_row_wise", shards=tuple(shards))


def grid(table: BaseEmbeddingConfig, hosts: Sequence[int], local_world_size: int) -> ParameterSharding:
    """Divide columns into equal parts, one for each host; each part's rows in equal parts over the host's ranks.

    Raises:
        PlanError: There are more hosts than column parts, or a host has more ranks than the table has rows.
    """
    parts = column_parts(table, len(hosts))
    shards = [
        shard
        for columns, host in zip(parts, hosts, strict=True)
        for shard in _row_shards(table, columns, host_ranks(host, local_world_size))
    ]
    return ParameterSharding(sharding_type="grid_shard", shards=tuple(shards))


def host_ranks(host: int, local_world_size: int) -> range:
    """Return the ranks of a host."""
    return range(host * local_world_size, (host + 1) * local_world_size)


def row_parts(table: BaseEmbeddingConfig, num_parts: int) -> list[tuple[int, int]]:
    """Return the first row and the end of each part of a table's rows.

    Raises:
        PlanError: There are more parts than rows.
    """
    return _parts(table.num_embeddings, num_parts, 1, table.name, "rows")


def column_parts(table: BaseEmbeddingConfig, num_parts: int) -> list[tuple[int, int]]:
    """Return the first column and the end of each part of a table's columns.

    Raises:
        PlanError: There are more parts than multiples of 8 columns.
    """
    return _parts(table.embedding_dim, num_parts, COLUMN_MULTIPLE, table.name, "columns")


def _row_shards(
    table: BaseEmbeddingConfig, columns: tuple[int, int], ranks: Sequence[int]
) -> list[ShardMetadata]:
    parts = row_parts(table, len(ranks))
    return [
        ShardMetadata(
            shard_offsets=(start, columns[0]), shard_sizes=(end - start, columns[1] - columns[0]), rank=rank
        )
        for (start, end), rank in zip(parts, ranks, strict=True)
    ]


def _parts(size: int, num_parts: int, multiple: int, table: str, what: str) -> list[tuple[int, int]]:
    units = size // multiple
    if not 1 <= num_parts <= max(units, 1):
        raise PlanError(
            f"table {table!r}: cannot cut {size} {what} into {num_parts} parts, expected 1 to {max(units, 1)}"
            + (f" (multiples of {multiple})" if multiple > 1 else "")
        )
    bounds = [units * i // num_parts * multiple for i in range(num_parts)] + [size]
    return [(bounds[i], bounds[i + 1]) for i in range(num_parts)]
