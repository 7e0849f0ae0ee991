"""A first placement: greedy by bytes and by expected lookups, within a memory budget per device.

Shape letters: R rows, T tables, W world size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recsys.configs import BaseEmbeddingConfig
from recsys.errors import PlanError
from recsys.rows import RowFormat
from recsys.sharding.cuts import row_wise, table_wise
from recsys.sharding.device_rows import table_path
from recsys.sharding.plan import ParameterSharding, ShardingPlan


@dataclass(frozen=True, kw_only=True)
class PlacementOptions:
    """What the placement may count on.

    Attributes:
        world_size: W.
        budget_bytes: memory for rows on each device; None for no bound.
        row_alignment: of the rows, in bytes.
        expected_ids: by table path, how many IDs one row of a batch looks up; one per feature if not named.
    """

    world_size: int
    budget_bytes: int | None = None
    row_alignment: int = 1
    expected_ids: Mapping[str, float] | None = None


def stored_bytes(table: BaseEmbeddingConfig, row_alignment: int) -> int:
    """Bytes of a table's rows."""
    row_format = RowFormat(data_type=table.data_type, dim=table.embedding_dim)
    return table.num_embeddings * row_format.row_bytes(row_alignment)


def place(
    collections: Mapping[str, Sequence[BaseEmbeddingConfig]], options: PlacementOptions
) -> ShardingPlan:
    """Tables, the heaviest first, each to the device with the least load that has room for it.

    A table's load is its share of all bytes plus its share of all lookups. One that fits no device whole is cut
    by rows over all of them.

    Args:
        collections: the tables of each collection, with their stored data types, by path.
        options: see there.

    Raises:
        PlanError: names the table that does not fit and the bytes short.
    """
    tables = [(path, table) for path, group in collections.items() for table in group]
    sizes = [stored_bytes(table, options.row_alignment) for _, table in tables]
    named = options.expected_ids or {}
    ids = [named.get(table_path(path, t.name), float(len(t.feature_names))) for path, t in tables]
    loads = [
        size / max(sum(sizes), 1) + count / max(sum(ids), 1e-9)
        for size, count in zip(sizes, ids, strict=True)
    ]
    ranks = _Ranks(options)
    plan: dict[str, dict[str, ParameterSharding]] = {path: {} for path in collections}
    for i in sorted(range(len(tables)), key=lambda i: (-loads[i], i)):
        path, table = tables[i]
        plan[path][table.name] = ranks.take(table_path(path, table.name), table, sizes[i], loads[i])
    return ShardingPlan(
        plan={path: {t.name: plan[path][t.name] for t in group} for path, group in collections.items()}
    )


class _Ranks:
    """How full and how busy each rank is."""

    def __init__(self, options: PlacementOptions) -> None:
        self._world_size = options.world_size
        self._alignment = options.row_alignment
        self._free = [
            float("inf") if options.budget_bytes is None else options.budget_bytes
        ] * options.world_size
        self._loads = [0.0] * options.world_size

    def take(self, path: str, table: BaseEmbeddingConfig, size: int, load: float) -> ParameterSharding:
        whole = [rank for rank in range(self._world_size) if self._free[rank] >= size]
        if whole:
            rank = min(whole, key=lambda rank: (self._loads[rank], rank))
            self._free[rank] -= size
            self._loads[rank] += load
            return table_wise(table, rank)
        if table.num_embeddings >= self._world_size > 1:
            cut = row_wise(table, range(self._world_size))
            parts = [size * shard.shard_sizes[0] // table.num_embeddings for shard in cut.shards]
            if all(self._free[rank] >= part for rank, part in enumerate(parts)):
                for rank, part in enumerate(parts):
                    self._free[rank] -= part
                    self._loads[rank] += load / self._world_size
                return cut
            short = max(part - int(self._free[rank]) for rank, part in enumerate(parts))
        else:
            short = size - int(max(self._free))
        raise PlanError(
            f"table {path!r}: {size} bytes do not fit, whole or cut by rows over {self._world_size} devices: "
            f"{short} bytes short on a device; raise the memory budget, add devices, or store it in fewer bits"
        )
