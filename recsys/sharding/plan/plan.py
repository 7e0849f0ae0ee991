"""Sharding plans: the shards of each table and their ranks, as plain data with a JSON form.

Shape letters: D embedding dimension, R rows, W world size.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.distributed._shard.metadata import ShardMetadata as TorchShardMetadata
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardingSpec

from recsys.base.files import read_json
from recsys.base.json_checks import a_list, choice, json_field, whole
from recsys.configs import BaseEmbeddingConfig, DataType
from recsys.errors import PlanError
from recsys.sharding.plan.kinds import CacheParams

#: TorchRec's names. The type is for display and for the planner; routing and assembly follow from the shards.
SHARDING_TYPES = (
    "data_parallel",
    "table_wise",
    "column_wise",
    "row_wise",
    "table_row_wise",
    "table_column_wise",
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
        placement: The same with the device, ``rank:0/cuda:0``; of a rank in host memory by default.
    """

    shard_offsets: tuple[int, int]
    shard_sizes: tuple[int, int]
    rank: int
    placement: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.placement:
            object.__setattr__(self, "placement", f"rank:{self.rank}/cpu")

    @property
    def rows(self) -> tuple[int, int]:
        """First row, and the end."""
        return self.shard_offsets[0], self.shard_offsets[0] + self.shard_sizes[0]

    @property
    def columns(self) -> tuple[int, int]:
        """First column, and the end."""
        return self.shard_offsets[1], self.shard_offsets[1] + self.shard_sizes[1]


class ParameterSharding:
    """The sharding of one table, and its training kernel.

    The shards are given as ``shards``, or as TorchRec gives them: by ``ranks`` and ``sharding_spec``. Two shardings
    are equal if their types, kernels, shards and settings are.

    Args:
        sharding_type: One of ``SHARDING_TYPES``.
        compute_kernel: One of ``COMPUTE_KERNELS``; None leaves it to the sharder (training: ``fused``, or
            ``dense`` where data-parallel; inference has one kernel).
        ranks: The rank of each shard; by default those of the shards.
        sharding_spec: The shards, each with its placement.
        cache_params: The cache of the kernel ``fused_uvm_caching``.
        enforce_hbm: Whether the rows of that kernel lie in device memory too.
        stochastic_rounding: For FP16 tables, whether updated weights are rounded at random to either neighbour.
        bounds_check_mode: How an ID outside the table is treated.
        output_dtype: The data type of the lookup's outputs; FP32 is the only one.
        key_value_params: None: there is no kernel that keeps rows elsewhere than in memory.
        shards: Rectangles that cover the table; none if every rank holds all of it (``data_parallel``).

    Raises:
        PlanError: A setting that does not exist here, or a ``sharding_spec`` of another kind.
    """

    def __init__(  # noqa: PLR0913  (TorchRec's)
        self,
        sharding_type: str,
        compute_kernel: str | None = None,
        ranks: Sequence[int] | None = None,
        sharding_spec: ShardingSpec | None = None,
        cache_params: CacheParams | None = None,
        enforce_hbm: bool | None = None,
        stochastic_rounding: bool | None = None,
        bounds_check_mode: Any | None = None,
        output_dtype: DataType | None = None,
        key_value_params: Any | None = None,
        *,
        shards: Sequence[ShardMetadata] = (),
    ) -> None:
        if output_dtype not in (None, DataType.FP32):
            raise PlanError(
                f"output_dtype: got {output_dtype}, expected FP32 or None: lookups of training give float32"
            )
        if key_value_params is not None:
            raise PlanError("key_value_params: got some, expected None: rows lie in memory")
        self.sharding_type = sharding_type
        self.compute_kernel = compute_kernel
        self.cache_params = cache_params
        self.enforce_hbm = enforce_hbm
        self.stochastic_rounding = stochastic_rounding
        self.bounds_check_mode = bounds_check_mode
        self.output_dtype = output_dtype
        self.key_value_params = key_value_params
        self._spec = sharding_spec
        self._shards = tuple(shards) or _shards_of(sharding_spec, ranks)
        self._ranks = [shard.rank for shard in self._shards] if ranks is None else list(ranks)

    @property
    def shards(self) -> tuple[ShardMetadata, ...]:
        """Rectangles that cover the table; none if every rank holds all of it."""
        return self._shards

    @property
    def ranks(self) -> list[int]:
        """The ranks of the shards, or the ranks that were given."""
        return self._ranks

    @property
    def sharding_spec(self) -> ShardingSpec | None:
        """The shards for ``torch.distributed``; None if every rank holds the whole table."""
        if self._spec is None and self._shards:
            self._spec = EnumerableShardingSpec(
                [
                    TorchShardMetadata(list(s.shard_offsets), list(s.shard_sizes), s.placement)
                    for s in self._shards
                ]
            )
        return self._spec

    @property
    def is_replicated(self) -> bool:
        """Whether every rank holds the whole table."""
        return self.sharding_type == DATA_PARALLEL

    @property
    def cache_load_factor(self) -> float | None:
        """The share of the rows in the device's cache; None if not given."""
        return None if self.cache_params is None else self.cache_params.load_factor

    def with_kernel(self, compute_kernel: str | None) -> ParameterSharding:
        """Return the same sharding with another kernel."""
        changed = copy.copy(self)
        changed.compute_kernel = compute_kernel
        return changed

    def _key(self) -> tuple[Any, ...]:
        settings = (self.cache_params, self.enforce_hbm, self.stochastic_rounding, self.bounds_check_mode)
        return (self.sharding_type, self.compute_kernel, self._shards, *settings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ParameterSharding) and self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"ParameterSharding(sharding_type={self.sharding_type!r}, compute_kernel={self.compute_kernel!r}, "
            f"ranks={self._ranks}, shards={self._shards})"
        )


def _shards_of(spec: ShardingSpec | None, ranks: Sequence[int] | None) -> tuple[ShardMetadata, ...]:
    """Return the shards of a spec; those without rows or columns are left out."""
    if spec is None:
        return ()
    if not isinstance(spec, EnumerableShardingSpec):
        raise PlanError(f"sharding_spec: got {type(spec).__name__}, expected an EnumerableShardingSpec")
    found = []
    for i, shard in enumerate(spec.shards):
        rank = shard.placement.rank() if shard.placement is not None else None
        if rank is None and ranks is not None:
            rank = ranks[i]
        if rank is None or len(shard.shard_sizes) != 2:
            raise PlanError(f"sharding_spec.shards[{i}]: got {shard}, expected rows and columns, and a rank")
        (first_row, first_column), (rows, columns) = shard.shard_offsets, shard.shard_sizes
        if rows and columns:
            found.append(
                ShardMetadata(
                    shard_offsets=(first_row, first_column),
                    shard_sizes=(rows, columns),
                    rank=rank,
                    placement=str(shard.placement or ""),
                )
            )
    return tuple(found)


class ModuleShardingPlan:
    """The base of plans of one module."""


class EmbeddingModuleShardingPlan(ModuleShardingPlan, dict[str, ParameterSharding]):
    """The sharding of each table of one collection."""

    def __str__(self) -> str:
        """Return a readable form, one line per shard."""
        return "\n".join(_lines(self))


@dataclass(frozen=True)
class ShardingPlan:
    """The sharding of each table, by the path of its collection in the model.

    The path of a collection that is the model itself is ``""``.
    """

    plan: Mapping[str, Mapping[str, ParameterSharding]] = field(default_factory=dict)

    def get_plan_for_module(self, module_path: str) -> Mapping[str, ParameterSharding] | None:
        """Return the tables of one collection, None if the plan has no such collection."""
        return self.plan.get(module_path)

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
                    str(path): EmbeddingModuleShardingPlan(
                        (str(name), _table_from_json(table, f"plan[{path!r}][{name!r}]"))
                        for name, table in _mapping(tables, f"plan[{path!r}]").items()
                    )
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
            lines += [f"collection {path!r}", *_lines(tables)]
        return "\n".join(lines)

    @property
    def num_ranks(self) -> int:
        """The fewest ranks that the plan can have; 0 if every table is copied to all."""
        return max(self.ranks(), default=-1) + 1

    def ranks(self) -> set[int]:
        """Return every rank that holds a shard."""
        return {shard.rank for tables in self.plan.values() for t in tables.values() for shard in t.shards}


def _lines(tables: Mapping[str, ParameterSharding]) -> list[str]:
    """Return a table with a line for each shard."""
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
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


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
    kernel: dict[str, Any] = {} if table.compute_kernel is None else {"compute_kernel": table.compute_kernel}
    if table.cache_load_factor is not None:
        kernel["cache_load_factor"] = table.cache_load_factor
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
    cache = None
    if "cache_load_factor" in data:
        cache = CacheParams(load_factor=_share(data, "cache_load_factor", at))
    return ParameterSharding(
        sharding_type=choice(data, "sharding_type", at, SHARDING_TYPES),
        cache_params=cache,
        shards=tuple(shards),
        compute_kernel=choice(data, "compute_kernel", at, COMPUTE_KERNELS)
        if "compute_kernel" in data
        else None,
    )


def _share(data: Any, key: str, at: str) -> float:
    value = json_field(data, key, at)
    if type(value) not in (int, float) or not 0 < value <= 1:
        raise PlanError(f"{at}.{key}: got {str(value)[:80]}, expected a number above 0, at most 1")
    return float(value)


def _pair(data: Any, key: str, at: str) -> tuple[int, int]:
    value = json_field(data, key, at)
    is_pair = isinstance(value, list) and len(value) == 2
    if not is_pair or not all(type(v) is int and 0 <= v < 2**63 for v in value):
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
        wrong = sorted({s.rank for s in sharding.shards if not 0 <= s.rank < world_size})
        if wrong:
            needed = max(s.rank for other in plan.values() for s in other.shards) + 1
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


def read_plan(path: Path) -> ShardingPlan:
    """Return a plan from a JSON file, as ``ShardingPlan.to_json`` gives it.

    Raises:
        PlanError: The file cannot be read, is not JSON, or is not a plan; the message names the file.
    """
    data = read_json(path, "plan", PlanError)
    try:
        return ShardingPlan.from_json(data)
    except PlanError as error:
        raise PlanError(f"plan {path.name!r}: {error}; expected what recsys-plan --out wrote") from None
