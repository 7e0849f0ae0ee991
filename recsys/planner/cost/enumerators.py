"""The enumeration of sharding options: sharding type × compute kernel × number of shards, with costs.

Shape letters: D embedding dimension, R rows, W world size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from recsys.configs import DataType
from recsys.kernels.training import DIM_MULTIPLE
from recsys.planner.cost.estimate import Estimator, ShardCost, ShardShape
from recsys.planner.cost.tables import PlannedTable
from recsys.planner.cost.topology import Topology
from recsys.planner.errors import PlannerError, PlannerErrorType
from recsys.sharding.plan.kinds import EmbeddingComputeKernel
from recsys.sharding.plan.plan import DATA_PARALLEL, SHARDING_TYPES
from recsys.sharding.plan.sharding_types import COLUMN_MULTIPLE, column_parts

#: Column shards narrower than this are not tried unless a constraint asks: each processes all IDs again.
DEFAULT_MIN_PARTITION = 32
_ON_HOST_RANKS = ("table_row_wise", "grid_shard")


@dataclass(frozen=True, kw_only=True)
class ShardingOption:
    """One way to shard a table: blocks of columns, each on ``span`` ranks that share its rows in equal parts.

    Attributes:
        sharding_type: One of ``SHARDING_TYPES``.
        compute_kernel: One of ``COMPUTE_KERNELS``.
        span: Ranks of a block: 1, all ranks of a host, or all ranks. Of a data-parallel table, all ranks, each with
            all rows.
        blocks: For each block the cost on each of its ranks (the largest, if rows do not divide evenly).
    """

    sharding_type: str
    compute_kernel: str
    span: int
    blocks: tuple[ShardCost, ...]

    @property
    def total_us(self) -> float:
        """The sum over all ranks."""
        return self.span * sum(block.total_us for block in self.blocks)

    @property
    def max_us(self) -> float:
        """The largest on any rank."""
        return max(block.total_us for block in self.blocks)

    @property
    def hbm_bytes(self) -> int:
        """The sum over all ranks."""
        return self.span * sum(block.hbm_bytes for block in self.blocks)

    @property
    def ddr_bytes(self) -> int:
        """The sum over all ranks."""
        return self.span * sum(block.ddr_bytes for block in self.blocks)

    @property
    def max_hbm_bytes(self) -> int:
        """The largest on any rank."""
        return max(block.hbm_bytes for block in self.blocks)

    @property
    def max_ddr_bytes(self) -> int:
        """The largest on any rank."""
        return max(block.ddr_bytes for block in self.blocks)

    def text(self) -> str:
        """Return a description in lines."""
        return f"{self.sharding_type} {self.compute_kernel} × {self.span * len(self.blocks)}"


def enumerate_options(tables: Sequence[PlannedTable], estimator: Estimator) -> list[list[ShardingOption]]:
    """Return the options of each table.

    Raises:
        PlanError: A table's constraints leave no option.
    """
    found = []
    for table in tables:
        options = list(_options(table, estimator)) or list(_options(table, estimator, is_last=True))
        if not options:
            types, kernels = table.constraints.sharding_types, table.constraints.compute_kernels
            raise PlannerError(
                f"table {table.path!r}: constraints sharding_types {_listed(types)}, compute_kernels "
                f"{_listed(kernels)} leave no way to shard {table.config.num_embeddings} × "
                f"{table.config.embedding_dim} over {estimator.topology.world_size} ranks of "
                f"{estimator.topology.compute_device} ({estimator.topology.local_world_size} per host); possible: "
                f"{', '.join(_possible(table, estimator))}",
                PlannerErrorType.STRICT_CONSTRAINTS,
            )
        found.append(options)
    return found


def kernels_of(
    sharding_type: str, estimator: Estimator, asked: Sequence[str] | None, *, is_fusable: bool = True
) -> list[str]:
    """Return the kernels of a type; ``dense`` for sharded tables only if requested or no other is possible.

    Args:
        sharding_type: One of ``SHARDING_TYPES``.
        estimator: Provides the device and the workload.
        asked: The kernels that a constraint allows; None for all.
        is_fusable: Whether the shards suit the fused kernels.
    """
    on_cuda = estimator.topology.compute_device == "cuda"
    if not estimator.workload.is_training:
        possible = ["fused"] if sharding_type != DATA_PARALLEL else []
    elif sharding_type == DATA_PARALLEL:
        possible = ["dense"]
    else:
        fused = ["fused", *(["fused_uvm_caching", "fused_uvm"] if on_cuda else [])]
        possible = fused if is_fusable else []
        if asked is not None or not is_fusable:
            possible.append("dense")
    if (
        not estimator.workload.is_training
        and asked is not None
        and EmbeddingComputeKernel.QUANT.value in asked
    ):
        return possible
    return [kernel for kernel in possible if asked is None or kernel in asked]


def _listed(values: Sequence[str] | None) -> str:
    return "any" if values is None else str(list(values))


def _possible(table: PlannedTable, estimator: Estimator) -> list[str]:
    pairs = [
        f"{kind} {kernel}"
        for kind in SHARDING_TYPES
        for kernel in dict.fromkeys(
            kernel
            for widths, _ in _cuts(table, kind, estimator.topology)
            for kernel in kernels_of(kind, estimator, None, is_fusable=_is_fusable(table, widths, estimator))
        )
    ]
    return pairs or ["nothing"]


def _options(table: PlannedTable, estimator: Estimator, *, is_last: bool = False) -> Iterator[ShardingOption]:
    for kind in SHARDING_TYPES:
        if not table.allows(kind):
            continue
        of_sharder = table.allowed_kernels(kind)
        for widths, span in _cuts(table, kind, estimator.topology, is_last=is_last):
            is_fusable = _is_fusable(table, widths, estimator)
            asked = table.constraints.compute_kernels
            if asked is None and is_last and of_sharder is not None and "fused" not in of_sharder:
                asked = list(of_sharder)
            for kernel in kernels_of(kind, estimator, asked, is_fusable=is_fusable):
                if of_sharder is not None and kernel not in of_sharder:
                    continue
                yield _option(table, estimator, (kind, kernel), (widths, span))


def _is_fusable(table: PlannedTable, widths: Sequence[int], estimator: Estimator) -> bool:
    """Return whether kernels that update rows in the backward pass take such shards, as in ``check_shard``."""
    if not estimator.workload.is_training:
        return True
    on_host = estimator.topology.compute_device == "cpu"
    if on_host and table.config.data_type is DataType.BF16:
        return False
    return not any(width % DIM_MULTIPLE for width in widths)


def _option(
    table: PlannedTable,
    estimator: Estimator,
    kind: tuple[str, str],
    cut: tuple[tuple[int, ...], int],
) -> ShardingOption:
    widths, span = cut
    num_rows = table.config.num_embeddings
    if kind[0] != DATA_PARALLEL:
        num_rows = -(-num_rows // span)
    by_width = {
        width: estimator.shard(
            table,
            ShardShape(sharding_type=kind[0], compute_kernel=kind[1], num_rows=num_rows, num_columns=width),
        )
        for width in set(widths)
    }
    return ShardingOption(
        sharding_type=kind[0],
        compute_kernel=kind[1],
        span=span,
        blocks=tuple(by_width[width] for width in widths),
    )


def _cuts(
    table: PlannedTable, kind: str, topology: Topology, *, is_last: bool = False
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield the widths of the column blocks, and the number of ranks that share a block's rows."""
    dim, num_rows = table.config.embedding_dim, table.config.num_embeddings
    world_size, local = topology.world_size, topology.local_world_size
    # On one rank or one host types are one and the same; a constraint that leaves only such types gets them, and so
    # does a sharder.
    is_named = kind in table.asked_types(is_last=is_last)
    is_asked = is_last and is_named
    if kind == DATA_PARALLEL and (world_size > 1 or is_asked):
        yield (dim,), world_size
    elif kind == "table_wise":
        yield (dim,), 1
    elif kind == "column_wise":
        for num_parts in _part_counts(table, world_size) or ([1] if is_asked else []):
            yield _widths(table, num_parts), 1
    elif kind == "table_column_wise" and is_named:
        # The columns stay on one host; on the only one, that is column-wise.
        of_host = world_size if topology.num_hosts == 1 else 1
        for num_parts in _part_counts(table, of_host) or ([1] if is_last else []):
            yield _widths(table, num_parts), 1
    elif kind == "row_wise" and (world_size > 1 or is_asked) and world_size <= num_rows:
        yield (dim,), world_size
    elif (
        kind in _ON_HOST_RANKS and (is_asked or (topology.num_hosts > 1 and local > 1)) and local <= num_rows
    ):
        if kind == "table_row_wise":
            yield (dim,), local
        else:
            for num_parts in _part_counts(table, topology.num_hosts) or ([1] if is_asked else []):
                yield _widths(table, num_parts), local


def _part_counts(table: PlannedTable, most: int) -> list[int]:
    """Return 2 to 8, then powers of two; with so many shards, more choices do not improve the balance."""
    narrowest = table.constraints.min_partition or DEFAULT_MIN_PARTITION
    narrowest = -(-narrowest // COLUMN_MULTIPLE) * COLUMN_MULTIPLE
    most = min(most, table.config.embedding_dim // narrowest)
    return [n for n in (*range(2, 9), 16, 32, 64, 128, 256) if n <= most]


def _widths(table: PlannedTable, num_parts: int) -> tuple[int, ...]:
    return tuple(end - start for start, end in column_parts(table.config, num_parts))
