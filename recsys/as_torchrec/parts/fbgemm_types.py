"""FBGEMM's own names for data types and pooling, for code that calls its modules itself."""

from __future__ import annotations

from typing import Any

from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode

from recsys.configs import DataType, PoolingType


def data_type_to_sparse_type(data_type: DataType) -> SparseType:
    """Return FBGEMM's ``SparseType`` of a table's numbers."""
    return SparseType[data_type.name]


def pooling_type_to_pooling_mode(pooling_type: PoolingType, sharding_type: Any | None = None) -> PoolingMode:
    """Return FBGEMM's ``PoolingMode``.

    Args:
        pooling_type: The pooling.
        sharding_type: A ``ShardingType``, or its value. Means of tables that are cut by rows are summed by the kernel,
            and divided afterwards.
    """
    cut_by_rows = getattr(sharding_type, "value", sharding_type) in ("row_wise", "table_row_wise")
    mean = pooling_type is PoolingType.MEAN
    return PoolingMode["SUM" if mean and cut_by_rows else pooling_type.name]
