"""Steps of TorchRec's planner that planners written for it call, and units of memory, by TorchRec's names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from recsys.as_torchrec.modules.embedding_tower import EmbeddingTowerCollection
from recsys.as_torchrec.planner.interfaces import PartitionByType, ShardingOption
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection
from recsys.planner.constants import NUM_POOLINGS
from recsys.planner.cost.constraints import ParameterConstraints
from recsys.quant import float_tables
from recsys.sharding.plan.kinds import EmbeddingComputeKernel

#: The share of a key-value store's rows that a cache holds by default, in TorchRec 1.8.
KV_CACHING_RATIO = 0.2

#: Sharding types that collections behind feature processors have only where they are asked for.
GUARDED_SHARDING_TYPES_FOR_FP_MODULES = {"row_wise", "table_row_wise", "grid_shard"}

#: Kernels that tables have only where they are asked for: key-value stores, which no table has here.
GUARDED_COMPUTE_KERNELS = {
    EmbeddingComputeKernel.KEY_VALUE,
    EmbeddingComputeKernel.SSD_VIRTUAL_TABLE,
    EmbeddingComputeKernel.DRAM_VIRTUAL_TABLE,
    EmbeddingComputeKernel.DRAM_SSD_VIRTUAL_TABLE,
}

_PARTITIONS = {
    "table_wise": PartitionByType.DEVICE,
    "column_wise": PartitionByType.DEVICE,
    "table_row_wise": PartitionByType.HOST,
    "table_column_wise": PartitionByType.HOST,
    "row_wise": PartitionByType.UNIFORM,
    "data_parallel": PartitionByType.UNIFORM,
    "grid_shard": PartitionByType.MULTI_HOST,
}


def get_partition_by_type(sharding_type: str) -> str:
    """Return what the shards of a sharding type are placed on, a value of ``PartitionByType``.

    Raises:
        ValueError: The sharding type is unknown.
    """
    if sharding_type not in _PARTITIONS:
        raise ValueError(f"sharding_type: got {sharding_type!r}, expected one of {sorted(_PARTITIONS)}")
    return _PARTITIONS[sharding_type].value


def get_num_poolings(
    constraints: Mapping[str, ParameterConstraints] | None, so: ShardingOption
) -> list[float]:
    """Return the bags per sample of each feature: the option's, or the table's constraint, or one for each."""
    if so.num_poolings is not None and len(so.num_poolings) == len(so.input_lengths):
        return so.num_poolings
    constraint = (constraints or {}).get(so.name)
    if constraint is not None and constraint.num_poolings:
        return list(constraint.num_poolings)
    return [NUM_POOLINGS] * len(so.input_lengths)


def prod(iterable: Iterable[int]) -> int:
    """Return the product."""
    return math.prod(iterable)


def placement(compute_device: str, rank: int, local_size: int) -> str:
    """Return where a rank's shards lie, such as ``rank:9/cuda:1``.

    Args:
        compute_device: The kind of device.
        rank: The rank.
        local_size: Ranks per host.
    """
    number = f":{rank % local_size}" if compute_device in ("cuda", "mtia") else ""
    return f"rank:{rank}/{compute_device}{number}"


def reset_shard_rank(proposal: Sequence[ShardingOption]) -> None:
    """Take the ranks off all shards, in place."""
    for option in proposal:
        for shard in option.shards:
            shard.rank = None


def tower_index(name: str, child_module: EmbeddingTowerCollection) -> int:
    """Return the number of the tower that has a table.

    Args:
        name: The table.
        child_module: The towers.

    Raises:
        RuntimeError: None has it.
    """
    for number, tower in enumerate(child_module.towers):
        for part in tower.modules():
            if isinstance(part, EmbeddingBagCollection | EmbeddingCollection) and any(
                table.name == name for table in float_tables(part)
            ):
                return number
    raise RuntimeError(f"name: got table {name!r}, expected one of the towers' tables")


def bytes_to_gb(num_bytes: int) -> float:
    """Return bytes in GiB."""
    return num_bytes / 2**30


def bytes_to_mb(num_bytes: float | int) -> float:
    """Return bytes in MiB."""
    return num_bytes / 2**20


def gb_to_bytes(gb: float) -> int:
    """Return GiB in bytes, rounded down."""
    return int(gb * 2**30)


def mb_to_bytes(mb: float) -> int:
    """Return MiB in bytes, rounded down."""
    return int(mb * 2**20)


def sharder_name(t: type[Any]) -> str:
    """Return a module type's name with its module."""
    return f"{t.__module__}.{t.__name__}"


def storage_repr_in_gb(storage: Any | None) -> str:
    """Return a ``Storage`` as text in GiB; an empty text for None."""
    if storage is None:
        return ""
    hbm, ddr = (round(bytes_to_gb(num_bytes), 3) for num_bytes in (storage.hbm, storage.ddr))
    return f"Storage(hbm = {hbm} GB, ddr = {ddr} GB)"
