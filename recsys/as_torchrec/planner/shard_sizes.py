"""The shards of a table and their memory, by TorchRec's names, for planners that list options themselves.

Shape letters: D embedding dimension, R rows, W world size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from recsys.as_torchrec.planner.sharder_data import SharderData
from recsys.as_torchrec.planner.steps import KV_CACHING_RATIO
from recsys.configs import EmbeddingBagConfig, EmbeddingConfig, dtype_to_data_type
from recsys.planner.constants import MIN_CW_DIM
from recsys.planner.cost.capacity import Storage
from recsys.planner.cost.constraints import ParameterConstraints
from recsys.planner.cost.estimate import Estimator, ShardShape, Workload
from recsys.planner.cost.tables import planned_tables
from recsys.planner.cost.topology import Topology
from recsys.sharding.plan.kinds import PipelineType

Sizes = list[list[int]]
#: The rows of a shard, and the first of them.
_Run = tuple[int, int]


def calculate_shard_sizes_and_offsets(  # noqa: PLR0913  (TorchRec's arguments)
    tensor: Tensor,
    world_size: int,
    local_world_size: int,
    sharding_type: str,
    col_wise_shard_dim: int | None = None,
    device_memory_sizes: Sequence[int] | None = None,
    num_buckets: int | None = None,
) -> tuple[Sizes, Sizes]:
    """Return the sizes of a table's shards, and their offsets, as TorchRec cuts it.

    Rows are cut into equal blocks and what is left; the planner here cuts them into parts that differ by one at most.

    Args:
        tensor: The table, ``[R, D]``.
        world_size: W.
        local_world_size: Ranks per host.
        sharding_type: A value of ``ShardingType``.
        col_wise_shard_dim: The least width of a column shard.
        device_memory_sizes: The memory of each rank; row-wise shards are in proportion to it.
        num_buckets: Runs of rows that are not cut, of row-wise shards.

    Raises:
        ValueError: The sharding type is unknown, or the rows cannot be divided into the buckets, or the memory sizes
            are not one for each rank.
    """
    num_rows, dim = tensor.shape
    width = dim
    runs: list[_Run] = [(num_rows, 0)]
    if sharding_type == "data_parallel":
        runs *= world_size
    elif sharding_type == "row_wise":
        runs = runs_of(row_sizes(num_rows, world_size, num_buckets, device_memory_sizes))
    elif sharding_type in ("table_row_wise", "grid_shard"):
        runs = runs_of(blocks_of(num_rows, local_world_size))
    elif sharding_type not in ("table_wise", "column_wise", "table_column_wise"):
        raise ValueError(
            f"sharding_type: got {sharding_type!r}, expected one of data_parallel, table_wise, row_wise, "
            "table_row_wise, column_wise, table_column_wise and grid_shard"
        )
    if sharding_type in ("column_wise", "table_column_wise", "grid_shard"):
        width = _width(dim, col_wise_shard_dim or MIN_CW_DIM)
    lefts = range(0, dim, width)
    sizes = [[size, width] for _ in lefts for size, _ in runs]
    return sizes, [[top, left] for left in lefts for _, top in runs]


def runs_of(sizes: Sequence[int]) -> list[_Run]:
    """Return each number of rows with the first of them."""
    return [(size, sum(sizes[:i])) for i, size in enumerate(sizes)]


def blocks_of(num_rows: int, num_parts: int) -> list[int]:
    """Return equal numbers of rows, rounded up; the last may be fewer, or none."""
    block = -(-num_rows // num_parts)
    return [max(0, min(block, num_rows - block * i)) for i in range(num_parts)]


def row_sizes(
    num_rows: int,
    world_size: int,
    num_buckets: int | None = None,
    memory_sizes: Sequence[int] | None = None,
) -> list[int]:
    """Return the rows of each rank of a table that is cut by rows.

    Args:
        num_rows: R.
        world_size: W.
        num_buckets: Runs of rows that are not cut.
        memory_sizes: The memory of each rank, to which its rows are proportional.

    Raises:
        ValueError: The rows cannot be divided into the buckets, or the memory sizes are not those of W ranks.
    """
    if num_buckets and (num_buckets < world_size or num_rows % num_buckets):
        raise ValueError(
            f"num_buckets: got {num_buckets}, expected a divisor of the {num_rows} rows, and at least one bucket for "
            f"each of {world_size} ranks"
        )
    if memory_sizes:
        if len(memory_sizes) != world_size:
            raise ValueError(
                f"device_memory_sizes: got {len(memory_sizes)}, expected one for each of {world_size} ranks"
            )
        units, total = num_buckets or num_rows, sum(memory_sizes)
        found = [int(units * (size / total)) * (num_rows // units) for size in memory_sizes[:-1]]
        return [*found, num_rows - sum(found)]
    if not num_buckets:
        return blocks_of(num_rows, world_size)
    each, more = divmod(num_buckets, world_size)
    return [num_rows // num_buckets * (each + (rank < more)) for rank in range(world_size)]


def _width(dim: int, least: int) -> int:
    """Return the least divisor of D that is a multiple of 4 and not below the least width; D if there is none."""
    return next((width for width in range(least, dim) if dim % width == 0 and width % 4 == 0), dim)


def calculate_shard_storages(  # noqa: PLR0913  (TorchRec's arguments)
    sharder_data: SharderData,
    sharding_type: str,
    tensor: Tensor,
    compute_device: str,
    compute_kernel: str,
    shard_sizes: Sizes,
    batch_sizes: Sequence[int],
    world_size: int,
    local_world_size: int,
    input_lengths: Sequence[float],
    num_poolings: Sequence[float],
    caching_ratio: float,
    is_pooled: bool,
    input_data_type_size: float,
    output_data_type_size: float,
    pipeline_type: PipelineType = PipelineType.NONE,
    count_ephemeral_storage_cost: bool = False,
    is_inference: bool = False,
    multipass_prefetch_max_pass: int | None = None,
    key_value_params: Any = None,
    kv_cache_load_factor: float = KV_CACHING_RATIO,
    use_virtual_table: bool = False,
) -> list[Storage]:
    """Return the memory of each shard, by the costs of the planner here; see ``EmbeddingStorageEstimator``.

    In inference only rows count, as in TorchRec. In training these are rows, the state of row-wise Adagrad, and the
    IDs, outputs and gradients of a batch.

    Args:
        sharder_data: Not needed.
        sharding_type: A value of ``ShardingType``.
        tensor: The table, ``[R, D]``.
        compute_device: ``cuda`` or ``cpu``.
        compute_kernel: A value of ``EmbeddingComputeKernel``.
        shard_sizes: Rows and columns of each shard.
        batch_sizes: Samples per rank, for each feature.
        world_size: W.
        local_world_size: Ranks per host.
        input_lengths: IDs per bag, for each feature.
        num_poolings: Bags per sample, for each feature.
        caching_ratio: The share of rows in a cache, for ``fused_uvm_caching``.
        is_pooled: Whether bags are summed.
        input_data_type_size: Not needed: IDs have 8 bytes.
        output_data_type_size: Not needed: outputs have 4 bytes.
        pipeline_type: Not needed: batches in transit are part of what is reserved.
        count_ephemeral_storage_cost: Not needed: outputs always count.
        is_inference: Whether tables are looked up only.
        multipass_prefetch_max_pass: Not needed.
        key_value_params: Only None is taken: rows lie in memory.
        kv_cache_load_factor: Not needed.
        use_virtual_table: Only False is taken.

    Raises:
        ValueError: The table is to lie in a key-value store.
    """
    del sharder_data, input_data_type_size, output_data_type_size, pipeline_type, count_ephemeral_storage_cost
    del multipass_prefetch_max_pass, kv_cache_load_factor
    if key_value_params is not None or use_virtual_table:
        raise ValueError("key_value_params, use_virtual_table: got some, expected none: rows lie in memory")
    num_rows, dim = tensor.shape
    kind = EmbeddingBagConfig if is_pooled else EmbeddingConfig
    config = kind(
        name="table",
        num_embeddings=num_rows,
        embedding_dim=dim,
        feature_names=[f"feature_{i}" for i in range(len(input_lengths))],
        data_type=dtype_to_data_type(tensor.dtype),
    )
    asked = ParameterConstraints(
        pooling_factors=list(input_lengths),
        num_poolings=list(num_poolings),
        batch_sizes=list(batch_sizes),
        cache_load_factor=caching_ratio,
    )
    (table,) = planned_tables({"": [config]}, {"table": asked}, batch_sizes[0])
    topology = Topology(
        world_size=world_size, compute_device=compute_device, local_world_size=local_world_size
    )
    costs = Estimator(topology, Workload(is_training=not is_inference, counts_buffers=not is_inference))
    found = []
    for shard_rows, columns in shard_sizes:
        shape = ShardShape(
            sharding_type=sharding_type,
            compute_kernel=compute_kernel,
            num_rows=shard_rows,
            num_columns=columns,
        )
        cost = costs.shard(table, shape)
        found.append(Storage(cost.hbm_bytes, cost.ddr_bytes))
    return found
