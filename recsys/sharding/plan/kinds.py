"""The names of sharding types and compute kernels, and the numbers of a table's cache. Names follow TorchRec."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any

from recsys.configs import DataType


@unique
class ShardingType(Enum):
    """How a table is divided over ranks; plans hold the values."""

    DATA_PARALLEL = "data_parallel"
    TABLE_WISE = "table_wise"
    COLUMN_WISE = "column_wise"
    ROW_WISE = "row_wise"
    TABLE_ROW_WISE = "table_row_wise"
    TABLE_COLUMN_WISE = "table_column_wise"
    GRID_SHARD = "grid_shard"


@unique
class EmbeddingComputeKernel(Enum):
    """What looks a table up, and trains it; plans hold the values.

    Here tables are trained by ``COMPUTE_KERNELS`` of ``recsys.sharding.plan.plan``; of the others only the names exist.
    """

    DENSE = "dense"
    FUSED = "fused"
    FUSED_UVM = "fused_uvm"
    FUSED_UVM_CACHING = "fused_uvm_caching"
    QUANT = "quant"
    QUANT_UVM = "quant_uvm"
    QUANT_UVM_CACHING = "quant_uvm_caching"
    KEY_VALUE = "key_value"
    CUSTOMIZED_KERNEL = "customized_kernel"
    SSD_VIRTUAL_TABLE = "ssd_virtual_table"
    DRAM_VIRTUAL_TABLE = "dram_virtual_table"
    DRAM_SSD_VIRTUAL_TABLE = "dram_ssd_virtual_table"
    FUSED_TRITON = "fused_triton"


@unique
class PipelineType(Enum):
    """The kinds of training pipelines."""

    NONE = "none"
    TRAIN_BASE = "train_base"
    TRAIN_SPARSE_DIST = "train_sparse_dist"
    TRAIN_PREFETCH_SPARSE_DIST = "train_prefetch_sparse_dist"


class CacheStatistics(ABC):
    """What is known of the lookups of a table with the kernel ``fused_uvm_caching``."""

    @property
    @abstractmethod
    def expected_lookups(self) -> float:
        """The number of distinct rows that a batch looks up."""

    @abstractmethod
    def expected_miss_rate(self, clf: float) -> float:
        """Return the share of lookups that miss a cache of this load factor."""

    @property
    @abstractmethod
    def cacheability(self) -> float:
        """How hard the lookups are to cache: 0 is easy, 1 is hard."""


@dataclass
class CacheParams:
    """The cache of a table with the kernel ``fused_uvm_caching``; FBGEMM's default for None.

    Attributes:
        algorithm: FBGEMM's ``CacheAlgorithm``.
        load_factor: The share of the table's rows in the device's cache.
        reserved_memory: Bytes of device memory that the cache leaves free.
        precision: The data type of cached rows.
        prefetch_pipeline: Whether rows are fetched in the batch before.
        stats: The table's lookups, for the planner's estimate.
        multipass_prefetch_config: FBGEMM's ``MultiPassPrefetchConfig``.
    """

    algorithm: Any | None = None
    load_factor: float | None = None
    reserved_memory: float | None = None
    precision: DataType | None = None
    prefetch_pipeline: bool | None = None
    stats: CacheStatistics | None = None
    multipass_prefetch_config: Any | None = None
