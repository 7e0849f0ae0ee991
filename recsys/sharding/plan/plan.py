"""Sharding plans: the shards of each table and their ranks, as plain data with a JSON form.

Shape letters: D embedding dim, R rows, W world size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recsys.configs import BaseEmbeddingConfig
from recsys.errors import PlanError
from recsys.json_checks import a_list, choice, json_field, whole

#: TorchRec's names. The type is for display and for the planner; routing and assembly follow from the shards.
SHARDING_TYPES = (
    "data_parallel",
    "table_wise",
    "column_wise",
    "row_wise",
    "table_row_wise",
    "grid_shard",
)
DATA_PARALLEL = "data_parallel"

#: TorchRec's names. ``dense``: gradients of the table's size, for any optimizer. ``fused``: the update happens in
#: the backward pass, on the rows that were read. The UVM kernels keep rows in host memory that the device reads.
COMPUTE_KERNELS = ("dense", "fused", "fused_uvm", "fused_uvm_caching")


@dataclass(frozen=True, kw_only=True)
class ShardMetadata:
    """A rectangle of a table: rows from ``shard_offsets[0]``, columns from ``shard_offsets[1]``.

    Attributes:
        shard_offsets: First row, first column.
        shard_sizes: Number of rows, number of columns.
        rank: The rank, or the position in the list of devices, that holds it.
    """

    shard_offsets: tuple[int, int]
    shard_sizes: tuple[int, int]
    rank: int

    @property
    def rows(self) -> tuple[int, int]:
        """First row, and the end."""
        return self.shard_offsets[0], self.shard_offsets[0] + self.shard_sizes[0]

    @property
    def columns(self) -> tuple[int, int]:
        """First column, and the end."""
        return self.shard_offsets[1], self.shard_offsets[1] + self.shard_sizes[1]


@dataclass(frozen=True, kw_only=True)
class ParameterSharding:
    """The sharding of one table, and its training kernel.

    Attributes:
        sharding_type: One of ``SHARDING_TYPES``.
        shards: Rectangles that cover the table; none if every rank holds all of it (``data_parallel``).
        compute_kernel: One of ``COMPUTE_KERNELS``; None leaves it to the sharder (training: ``fused``, or
            ``dense`` where data-parallel; inference has one kernel).
    """

    sharding_type: str
    shards: tuple[ShardMetadata, ...]
    compute_kernel: str | None = None

    @property
    def is_replicated(self) -> bool:
        """Whether every rank holds the whole table."""
        return self.sharding_type == DATA_PARALLEL

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the shards."""
        return tuple(shard.rank for shard in self.shards)


@dataclass(frozen=True, kw_only=True)
class ShardingPlan:
    """The sharding of each table, by the path of its collection in the model.

    The path of a collection that is the model itself is ``""``.
    """

    plan: Mapping[str, Mapping[str, ParameterSharding]] = field(default_factory=dict)

    def of(self, path: str) -> Mapping[str, ParameterSharding]:
        """Return the tables of one collection.

        Raises:
            PlanError: The plan has no such collection.
        """
        if path not in self.plan:
            raise PlanError(f"plan: missing collection {path!r}, got {sorted(self.plan)}")
        return self.plan[path]

    def to_json(self) -> dict[str, Any]:
        """Return plain data that ``from_json`` reads back."""
        return {
            path: {name: _table_to_json(table) for name, table in tables.items()}
            for path, tables in self.plan.items()
        }

    @classmethod
    def from_json(cls, data: Any) -> ShardingPlan:
        """Read untrusted data in the format of ``to_json``.

        Raises:
            PlanError: A field is wrong; the message names it, what was found and what was expected.
        """
        try:
            return cls(
                plan={
                    str(path): {
                        str(name): _table_from_json(table, f"plan[{path!r}][{name!r}]")
                        for name, table in _mapping(tables, f"plan[{path!r}]").items()
                    }
                    for path, tables in _mapping(data, "plan").items()
                }
            )
        except PlanError:
            raise
        except ValueError as error:
            raise PlanError(str(error)) from None

    def __str__(self) -> str:
        """Return a readable form, one line per shard."""
        lines = []
        for path, tables in self.plan.items():
            rows = [("table", "sharding type", "compute kernel", "rank", "rows", "columns")]
            for name, table in tables.items():
                kernel = table.compute_kernel or ("dense" if table.is_replicated else "fused")
                kind = (name, table.sharding_type, kernel)
                if table.is_replicated:
                    rows.append((*kind, "all", "all", "all"))
                for shard in table.shards:
                    (top, bottom), (left, right) = shard.rows, shard.columns
                    rows.append((*kind, str(shard.rank), f"{top}:{bottom}", f"{left}:{right}"))
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            lines.append(f"collection {path!r}")
            lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join(lines)

    @property
    def num_ranks(self) -> int:
        """The fewest ranks that the plan can have; 0 if every table is copied to all."""
        return max(self.ranks(), default=-1) + 1

    def ranks(self) -> set[int]:
        """Return every rank that holds a shard."""
        return {rank for tables in self.plan.values() for t in tables.values() for rank in t.ranks}


def _mapping(data: Any, at: str) -> dict[Any, Any]:
    if not isinstance(data, dict):
        raise PlanError(f"{at}: got {type(data).__name__}, expected an object")
    return data


def _table_to_json(table: ParameterSharding) -> dict[str, Any]:
    shards = [
        {
            "shard_offsets": list(shard.shard_offsets),
            "shard_sizes": list(shard.shard_sizes),
            "rank": shard.rank,
        }
        for shard in table.shards
    ]
    kernel = {} if table.compute_kernel is None else {"compute_kernel": table.compute_kernel}
    return {"sharding_type": table.sharding_type, **kernel, "shards": shards}


def _table_from_json(data: Any, at: str) -> ParameterSharding:
    shards = [
        ShardMetadata(
            shard_offsets=_pair(shard, "shard_offsets", to),
            shard_sizes=_pair(shard, "shard_sizes", to),
            rank=whole(shard, "rank", to),
        )
        for to, shard in a_list(data, "shards", at)
    ]
    return ParameterSharding(
        sharding_type=choice(data, "sharding_type", at, SHARDING_TYPES),
        shards=tuple(shards),
        compute_kernel=choice(data, "compute_kernel", at, COMPUTE_KERNELS)
        if "compute_kernel" in data
        else None,
    )


def _pair(data: Any, key: str, at: str) -> tuple[int, int]:
    value = json_field(data, key, at)
    if not isinstance(value, list) or len(value) != 2 or not all(type(v) is int and v >= 0 for v in value):
        raise PlanError(f"{at}.{key}: got {str(value)[:80]}, expected two whole numbers (rows, columns)")
    return value[0], value[1]


def check_plan(
    tables: Sequence[BaseEmbeddingConfig], plan: Mapping[str, ParameterSharding], world_size: int
) -> None:
    """Check that every table is in the plan, that its shards cover it exactly once, and that every rank exists.

    Column cuts must be the same for all rows of a table.

    Raises:
        PlanError: A table is wrong; the message names it, what was found and what was expected.
    """
    names = {table.name for table in tables}
    if set(plan) != names:
        missing, unknown = sorted(names - set(plan)), sorted(set(plan) - names)
        raise PlanError(f"plan: missing tables {missing}, unknown tables {unknown}; expected {sorted(names)}")
    for table in tables:
        sharding = plan[table.name]
        at = f"plan[{table.name!r}]"
        if sharding.is_replicated:
            if sharding.shards:
                raise PlanError(
                    f"{at}.shards: got {len(sharding.shards)}, expected none: data_parallel copies all"
                )
            continue
        wrong = sorted({rank for rank in sharding.ranks if not 0 <= rank < world_size})
        if wrong:
            needed = max(rank for other in plan.values() for rank in other.ranks) + 1
            fix = (
                f": it is a plan for {needed}; make one for {world_size}, or use {needed}"
                if needed > world_size
                else ""
            )
            raise PlanError(
                f"{at}: got ranks {wrong}, expected 0 to {world_size - 1} (ranks or devices: {world_size}){fix}"
            )
        blocks: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for shard in sharding.shards:
            blocks.setdefault(shard.columns, []).append(shard.rows)
        whole_table = f"{table.num_embeddings} × {table.embedding_dim}"
        if not _covers(sorted(blocks), table.embedding_dim):
            raise PlanError(
                f"{at}: shards' columns {sorted(blocks)} do not cover the table's {whole_table} exactly once"
            )
        for columns, rows in blocks.items():
            if not _covers(sorted(rows), table.num_embeddings):
                raise PlanError(
                    f"{at}: shards' rows {sorted(rows)} at columns {columns} do not cover the table's "
                    f"{whole_table} exactly once"
                )


def _covers(ranges: Sequence[tuple[int, int]], size: int) -> bool:
    at = 0
    for start, end in ranges:
        if start != at or end <= start:
            return False
        at = end
    return at == size
