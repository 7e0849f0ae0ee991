"""Configurations of embedding tables.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, unique
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from recsys.base.table_modules import TAKEN_NAMES
from recsys.data_type import DataType as DataType


@unique
class PoolingType(Enum):
    """The pooling of a bag's rows into one vector."""

    SUM = "SUM"
    MEAN = "MEAN"
    NONE = "NONE"


#: The bits of a stored number.
DATA_TYPE_NUM_BITS = {
    DataType.FP32: 32,
    DataType.FP16: 16,
    DataType.BF16: 16,
    DataType.INT8: 8,
    DataType.INT4: 4,
    DataType.INT2: 2,
}
#: The data types for training.
FLOAT_TYPES = (DataType.FP32, DataType.FP16, DataType.BF16)


@dataclass
class BaseEmbeddingConfig:
    """One table of ``num_embeddings`` rows (R) and ``embedding_dim`` columns (D).

    Attributes:
        num_embeddings: R.
        embedding_dim: D.
        name: The table's name; state dicts and plans use it.
        data_type: FP32, FP16 or BF16 for float tables.
        feature_names: The features that are looked up in the table.
        weight_init_max: Upper end of the uniform initialization, ``1 / sqrt(R)`` if None.
        weight_init_min: Lower end, ``-1 / sqrt(R)`` if None.
        num_embeddings_post_pruning: TorchRec's number of rows of a pruned table; only None is taken.
        init_fn: Initializes the ``[R, D]`` weight in place, instead of the uniform initialization.
        need_pos: TorchRec's note that positions are weighted; no code reads it, there or here.
        input_dim: TorchRec's limit of raw IDs of hashed tables; only None is taken.
        total_num_buckets: TorchRec's buckets of hashed tables; only None is taken.
        use_virtual_table: TorchRec's tables in key-value stores; only False is taken.
        virtual_table_eviction_policy: Their eviction; only None is taken.
        enable_embedding_update: TorchRec's updates of served tables; only False is taken.
        stash_weights: TorchRec's move of weights to host memory between steps; only False is taken.
    """

    num_embeddings: int
    embedding_dim: int
    name: str = ""
    data_type: DataType = DataType.FP32
    feature_names: list[str] = field(default_factory=list)
    weight_init_max: float | None = None
    weight_init_min: float | None = None
    num_embeddings_post_pruning: int | None = None
    init_fn: Callable[[Tensor], Tensor | None] | None = None
    need_pos: bool = False
    input_dim: int | None = None
    total_num_buckets: int | None = None
    use_virtual_table: bool = False
    virtual_table_eviction_policy: object | None = None
    enable_embedding_update: bool = False
    stash_weights: bool = False

    def get_weight_init_max(self) -> float:
        """Return the upper end of the uniform initialization."""
        return self.num_embeddings**-0.5 if self.weight_init_max is None else self.weight_init_max

    def get_weight_init_min(self) -> float:
        """Return the lower end of the uniform initialization."""
        return -(self.num_embeddings**-0.5) if self.weight_init_min is None else self.weight_init_min

    def num_features(self) -> int:
        """Return the number of features that are looked up in the table."""
        return len(self.feature_names)


@dataclass
class EmbeddingBagConfig(BaseEmbeddingConfig):
    """A table whose rows are pooled, bag by bag."""

    pooling: PoolingType = PoolingType.SUM


@dataclass
class EmbeddingConfig(BaseEmbeddingConfig):
    """A table whose rows are returned one by one."""


# Arguments of TorchRec's for forms of tables that do not exist here, and the values that mean none.
_NOT_TAKEN: dict[str, object] = {
    "num_embeddings_post_pruning": None,
    "input_dim": None,
    "total_num_buckets": None,
    "use_virtual_table": False,
    "virtual_table_eviction_policy": None,
    "enable_embedding_update": False,
    "stash_weights": False,
}


class QuantConfig(NamedTuple):
    """What a collection's ``qconfig`` attribute says about its quantized form.

    Attributes:
        activation: Called without arguments it returns an object whose ``dtype`` is that of the outputs, such as
            ``torch.ao.quantization.PlaceholderObserver.with_args(dtype=torch.float16)``.
        weight: The same for the tables' rows.
        per_table_weight_dtype: Rows' dtypes by table, instead of ``weight``.
    """

    activation: Any
    weight: Any
    per_table_weight_dtype: dict[str, torch.dtype] | None = None


_DATA_TYPES = {
    torch.float32: DataType.FP32,
    torch.float16: DataType.FP16,
    torch.bfloat16: DataType.BF16,
    torch.int8: DataType.INT8,
    torch.qint8: DataType.INT8,
    torch.quint8: DataType.INT8,
    torch.uint8: DataType.INT8,
    torch.quint4x2: DataType.INT4,
    torch.quint2x4: DataType.INT2,
}


def dtype_to_data_type(dtype: torch.dtype) -> DataType:
    """Return the data type of a table whose numbers have this dtype; 8 bits are INT8, signed or not.

    Raises:
        ValueError: No table has such numbers.
    """
    if dtype not in _DATA_TYPES:
        raise ValueError(f"dtype: got {dtype}, expected one of {[str(known) for known in _DATA_TYPES]}")
    return _DATA_TYPES[dtype]


def data_type_to_dtype(data_type: DataType) -> torch.dtype:
    """Return the dtype of a table's numbers; for INT4 and INT2 the packed dtypes ``quint4x2`` and ``quint2x4``."""
    return next(dtype for dtype, known in _DATA_TYPES.items() if known is data_type)


def pooling_type_to_str(pooling_type: PoolingType) -> str:
    """Return the mode of ``torch.nn.EmbeddingBag``.

    Raises:
        ValueError: There is none.
    """
    if pooling_type is PoolingType.NONE:
        raise ValueError(f"pooling_type: got {pooling_type}, expected SUM or MEAN")
    return "mean" if pooling_type is PoolingType.MEAN else "sum"


Config = TypeVar("Config", bound=BaseEmbeddingConfig)


def tables_with(tables: Sequence[Config], features: Collection[str]) -> list[Config]:
    """Return the tables of some features, without other features."""
    kept = [
        replace(table, feature_names=[name for name in table.feature_names if name in features])
        for table in tables
    ]
    return [table for table in kept if table.feature_names]


def with_feature_names(tables: Sequence[Config]) -> list[Config]:
    """Return the tables; those without features get the feature of their own name."""
    return [t if t.feature_names else replace(t, feature_names=[t.name]) for t in tables]


def check_tables(tables: Sequence[BaseEmbeddingConfig]) -> None:
    """Check the tables of a collection.

    Raises:
        ValueError: A field is wrong; the message names the table, the field, what was found and what was expected.
    """
    if not tables:
        raise ValueError("tables: got none, expected at least one")
    names = Counter(table.name for table in tables)
    for table in tables:
        at = f"tables[{table.name!r}]"
        if not table.name or "." in table.name:
            raise ValueError(
                f"{at}.name: expected a name without a dot (it is part of the state dict's names)"
            )
        if table.name in TAKEN_NAMES:
            raise ValueError(
                f"{at}.name: got {table.name!r}, which torch.nn.Module uses itself; choose another name, such as "
                f"{table.name + '_table'!r}"
            )
        if names[table.name] > 1:
            raise ValueError(f"{at}.name: got it more than once, expected each table once")
        for name in ("num_embeddings", "embedding_dim"):
            if getattr(table, name) < 1:
                raise ValueError(f"{at}.{name}: got {getattr(table, name)}, expected at least 1")
        if not table.feature_names:
            raise ValueError(f"{at}.feature_names: got none, expected at least one")
        for name, default in _NOT_TAKEN.items():
            if getattr(table, name) is not default:
                raise ValueError(
                    f"{at}.{name}: got {getattr(table, name)}, expected {default}: tables here do not have this form; "
                    "leave it out"
                )
        if len(set(table.feature_names)) != len(table.feature_names):
            raise ValueError(f"{at}.feature_names: got {table.feature_names}, expected each feature once")


def embedding_names(tables: Sequence[BaseEmbeddingConfig]) -> list[list[str]]:
    """Return the name of each (table, feature) pair: the feature, or ``feature@table`` if several tables share it."""
    features = [feature for table in tables for feature in table.feature_names]
    return [
        [
            f"{feature}@{table.name}" if features.count(feature) > 1 else feature
            for feature in table.feature_names
        ]
        for table in tables
    ]
