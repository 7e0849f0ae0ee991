"""Plans of one module, table by table, by TorchRec's names.

``table_wise`` and its kin return generators: functions of a table's weight and the ranks that return its sharding.
``construct_module_sharding_plan`` calls one for each table.

Shape letters: D embedding dimension, R rows, W world size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from recsys.as_torchrec.planner.shard_sizes import blocks_of, row_sizes, runs_of
from recsys.base.collectives import get_local_size
from recsys.errors import PlanError
from recsys.sharding.plan.kinds import ShardingType
from recsys.sharding.plan.plan import (
    DATA_PARALLEL,
    EmbeddingModuleShardingPlan,
    ParameterSharding,
    ShardMetadata,
)
from recsys.sharding.sharders import ModuleSharder, get_default_sharders

#: Weight, ranks per host, W, kind of device, sharder -> sharding.
ParameterShardingGenerator = Callable[[Tensor, int, int, str, ModuleSharder[Any]], ParameterSharding]
_QUANT = "quant"
# First row, number of rows, first column, number of columns, rank.
_Rectangle = tuple[int, int, int, int, int]


def get_module_to_default_sharders() -> dict[type[nn.Module], ModuleSharder[Any]]:
    """Return the default sharders by the type of their modules."""
    return {sharder.module_type: sharder for sharder in get_default_sharders()}


def data_parallel() -> ParameterShardingGenerator:
    """Return a generator that copies the table to every rank."""

    def generate(
        param: Tensor, local_size: int, world_size: int, device_type: str, sharder: ModuleSharder[Any]
    ) -> ParameterSharding:
        del param, local_size, device_type, sharder
        return ParameterSharding(DATA_PARALLEL, "dense", ranks=list(range(world_size)))

    return generate


def table_wise(
    rank: int, device: str | None = None, compute_kernel: str | None = None
) -> ParameterShardingGenerator:
    """Return a generator that keeps the table whole on one rank.

    Args:
        rank: The rank.
        device: Its kind of device; that of all ranks by default.
        compute_kernel: The kernel; by default ``fused`` for marked weights (``apply_optimizer_in_backward``), else
            ``dense``.
    """

    def cut(param: Tensor, local_size: int, world_size: int) -> list[_Rectangle]:
        del local_size, world_size
        return [(0, param.shape[0], 0, param.shape[1], rank)]

    return _generator(ShardingType.TABLE_WISE, cut, compute_kernel, [device] if device else None)


def row_wise(
    sizes_placement: tuple[list[int], str | list[str]] | None = None,
    compute_kernel: str | None = None,
    num_buckets: int | None = None,
) -> ParameterShardingGenerator:
    """Return a generator that divides rows into equal parts, rounded up, over all ranks.

    Args:
        sizes_placement: The rows of each rank instead, and the kind of device, of all or of each; for inference.
        compute_kernel: As ``table_wise``.
        num_buckets: Runs of rows that are not cut, such as those of a mapping of raw IDs.

    Raises:
        PlanError: The rows are not those of the table, or cannot be divided into the buckets.
    """

    def cut(param: Tensor, local_size: int, world_size: int) -> list[_Rectangle]:
        del local_size
        num_rows, dim = param.shape
        try:
            sizes = (
                row_sizes(num_rows, world_size, num_buckets)
                if sizes_placement is None
                else sizes_placement[0]
            )
        except ValueError as error:
            raise PlanError(str(error)) from None
        if sum(sizes) != num_rows or len(sizes) > world_size:
            raise PlanError(
                f"sizes_placement: got {sizes}, expected at most {world_size} numbers of rows with the sum {num_rows}"
            )
        return [(top, size, 0, dim, i) for i, (size, top) in enumerate(runs_of(sizes))]

    devices = None
    if sizes_placement is not None:
        named = sizes_placement[1]
        devices = [named] * len(sizes_placement[0]) if isinstance(named, str) else named
        compute_kernel = _QUANT
    return _generator(ShardingType.ROW_WISE, cut, compute_kernel, devices)


def column_wise(
    ranks: list[int] | None = None,
    size_per_rank: list[int] | None = None,
    compute_kernel: str | None = None,
    device_types: list[str] | None = None,
) -> ParameterShardingGenerator:
    """Return a generator that divides columns.

    Args:
        ranks: The rank of each part, which are equal; the first ranks by default.
        size_per_rank: The columns of each part; the last may have fewer.
        compute_kernel: As ``table_wise``.
        device_types: The kind of device of each part.

    Raises:
        PlanError: Neither ranks nor sizes are given, or both of different lengths.
    """
    if ranks is None and size_per_rank is None:
        raise PlanError("ranks, size_per_rank: got none, expected one of them")
    if ranks is not None and size_per_rank is not None and len(ranks) != len(size_per_rank):
        raise PlanError(f"size_per_rank: got {len(size_per_rank)} sizes, expected one for each of {ranks}")

    def cut(param: Tensor, local_size: int, world_size: int) -> list[_Rectangle]:
        del local_size, world_size
        num_rows, dim = param.shape
        sizes = size_per_rank
        if sizes is None:
            assert ranks is not None
            if dim % len(ranks):
                raise PlanError(f"ranks: got {len(ranks)}, expected a divisor of the {dim} columns")
            sizes = [dim // len(ranks)] * len(ranks)
        if sum(sizes) < dim:
            raise PlanError(f"size_per_rank: got {sizes}, expected a sum of at least the {dim} columns")
        found: list[_Rectangle] = []
        left = 0
        for i, size in enumerate(sizes):
            width = min(size, dim - left)
            if width:
                found.append((0, num_rows, left, width, i if ranks is None else ranks[i]))
            left += width
        return found

    return _generator(ShardingType.COLUMN_WISE, cut, compute_kernel, device_types)


def table_row_wise(host_index: int) -> ParameterShardingGenerator:
    """Return a generator that divides rows over the ranks of one host."""

    def cut(param: Tensor, local_size: int, world_size: int) -> list[_Rectangle]:
        del world_size
        first = host_index * local_size
        return _by_rows(param, range(first, first + local_size), (0, param.shape[1]))

    return _generator(ShardingType.TABLE_ROW_WISE, cut)


def grid_shard(host_indexes: list[int]) -> ParameterShardingGenerator:
    """Return a generator that divides columns over hosts, and the rows of each part over the host's ranks."""

    def cut(param: Tensor, local_size: int, world_size: int) -> list[_Rectangle]:
        del world_size
        dim = param.shape[1]
        if dim % len(host_indexes):
            raise PlanError(f"host_indexes: got {len(host_indexes)}, expected a divisor of the {dim} columns")
        width = dim // len(host_indexes)
        return [
            rectangle
            for i, host in enumerate(host_indexes)
            for rectangle in _by_rows(
                param, range(host * local_size, (host + 1) * local_size), (i * width, width)
            )
        ]

    return _generator(ShardingType.GRID_SHARD, cut)


def apply_to_all(
    module: nn.Module,
    parameter_sharding_generator: ParameterShardingGenerator,
    sharder: ModuleSharder[Any] | None = None,
) -> dict[str, ParameterShardingGenerator]:
    """Return the same generator for every table of a module."""
    sharder = sharder or _sharder_of(module)
    return dict.fromkeys(sharder.shardable_parameters(module), parameter_sharding_generator)


def construct_module_sharding_plan(
    module: nn.Module,
    per_param_sharding: Mapping[str, ParameterShardingGenerator],
    sharder: ModuleSharder[Any] | None = None,
    local_size: int | None = None,
    world_size: int | None = None,
    device_type: str | None = None,
) -> EmbeddingModuleShardingPlan:
    """Return the plan of a module.

    Args:
        module: The collection.
        per_param_sharding: A generator for each table, by name.
        sharder: The module's sharder; the default one of its type if None.
        local_size: Ranks per host; as the launcher says if None.
        world_size: W; of the default process group if None.
        device_type: ``cuda`` or ``cpu``; ``cuda`` where there is one if None.

    Raises:
        PlanError: Tables are missing or unknown, or a generator does not suit its table.
    """
    sharder = sharder or _sharder_of(module)
    weights = sharder.shardable_parameters(module)
    if set(weights) != set(per_param_sharding):
        raise PlanError(
            f"per_param_sharding: got tables {sorted(per_param_sharding)}, expected {sorted(weights)}"
        )
    world_size = dist.get_world_size() if world_size is None else world_size
    local_size = get_local_size(world_size) if local_size is None else local_size
    device_type = device_type or ("cuda" if torch.cuda.is_available() else "cpu")
    return EmbeddingModuleShardingPlan(
        (name, generate(weights[name], local_size, world_size, device_type, sharder))
        for name, generate in per_param_sharding.items()
    )


def get_sharding_constructor_from_type(
    sharding_type: ShardingType,
) -> Callable[..., ParameterShardingGenerator]:
    """Return the function of this module for a type.

    Raises:
        PlanError: ``TABLE_COLUMN_WISE`` has none.
    """
    constructors: dict[ShardingType, Callable[..., ParameterShardingGenerator]] = {
        ShardingType.TABLE_WISE: table_wise,
        ShardingType.ROW_WISE: row_wise,
        ShardingType.COLUMN_WISE: column_wise,
        ShardingType.TABLE_ROW_WISE: table_row_wise,
        ShardingType.GRID_SHARD: grid_shard,
        ShardingType.DATA_PARALLEL: data_parallel,
    }
    if sharding_type not in constructors:
        raise PlanError(f"sharding_type: got {sharding_type}, expected one of {list(constructors)}")
    return constructors[sharding_type]


def _sharder_of(module: nn.Module) -> ModuleSharder[Any]:
    known = get_module_to_default_sharders()
    if type(module) not in known:
        raise PlanError(
            f"module: got {type(module).__name__}, expected one of {[kind.__name__ for kind in known]}, or a sharder"
        )
    return known[type(module)]


def _generator(
    kind: ShardingType,
    cut: Callable[[Tensor, int, int], list[_Rectangle]],
    compute_kernel: str | None = None,
    devices: Sequence[str] | None = None,
) -> ParameterShardingGenerator:
    def generate(
        param: Tensor, local_size: int, world_size: int, device_type: str, sharder: ModuleSharder[Any]
    ) -> ParameterSharding:
        kernels = sharder.compute_kernels(kind.value, device_type)
        if compute_kernel not in (None, _QUANT, *kernels):
            raise PlanError(f"compute_kernel: got {compute_kernel!r}, expected one of {kernels}")
        found = cut(param, local_size, world_size)
        wrong = sorted({rank for *_, rank in found if not 0 <= rank < world_size})
        if wrong:
            raise PlanError(f"{kind.value}: got ranks {wrong}, expected 0 to {world_size - 1}")
        shards = []
        for i, (top, rows, left, columns, rank) in enumerate(found):
            if rows and columns:
                device = devices[i] if devices is not None else device_type
                at = device if device == "cpu" else f"{device}:{rank % local_size}"
                shards.append(
                    ShardMetadata(
                        shard_offsets=(top, left),
                        shard_sizes=(rows, columns),
                        rank=rank,
                        placement=f"rank:{rank}/{at}",
                    )
                )
        return ParameterSharding(
            kind.value,
            compute_kernel or _default_kernel(param, kernels),
            ranks=[rank for *_, rank in found],
            shards=shards,
        )

    return generate


def _default_kernel(param: Tensor, kernels: Sequence[str]) -> str:
    """Return ``fused`` for a marked weight (``apply_optimizer_in_backward``), else ``dense``, as in TorchRec."""
    wanted = "fused" if hasattr(param, "_in_backward_optimizers") else "dense"
    return wanted if wanted in kernels else kernels[0]


def _by_rows(param: Tensor, ranks: Sequence[int], columns: tuple[int, int]) -> list[_Rectangle]:
    """Return equal parts of the rows, rounded up; the last ones may have fewer, or none."""
    runs = runs_of(blocks_of(param.shape[0], len(ranks)))
    return [(top, size, *columns, rank) for (size, top), rank in zip(runs, ranks, strict=True)]
