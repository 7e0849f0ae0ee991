"""Configurations of embedding tables.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, unique
from typing import TypeVar

from torch import Tensor

from recsys.table_modules import TAKEN_NAMES


@unique
class PoolingType(Enum):
    """The pooling of a bag's rows into one vector."""

    SUM = "SUM"
    MEAN = "MEAN"
    NONE = "NONE"


@unique
class DataType(Enum):
    """The data type of a table's stored numbers."""

    FP32 = "FP32"
    FP16 = "FP16"
    BF16 = "BF16"
    INT8 = "INT8"
    INT4 = "INT4"
    INT2 = "INT2"


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
        init_fn: Initializes the ``[R, D]`` weight in place, instead of the uniform initialization.
    """

    num_embeddings: int
    embedding_dim: int
    name: str = ""
    data_type: DataType = DataType.FP32
    feature_names: list[str] = field(default_factory=list)
    weight_init_max: float | None = None
    weight_init_min: float | None = None
    init_fn: Callable[[Tensor], Tensor | None] | None = None

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


Config = TypeVar("Config", bound=BaseEmbeddingConfig)


def tables_with(tables: Sequence[Config], features: Collection[str]) -> list[Config]:
    """Return the tables of some features, without other features."""
    kept = [
        replace(table, feature_names=[name for name in table.feature_names if name in features])
        for table in tables
    ]
    return [table for table in kept if table.feature_names]


def check_tables(tables: Sequence[BaseEmbeddingConfig]) -> None:
    """Check the tables of a collection.

    Raises:
        ValueError: A field is wrong; the message names the table, the field, what was found and what was expected.
    """
    if not tables:
        raise ValueError("tables: got none, expected at least one")
    names = [table.name for table in tables]
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
        if names.count(table.name) > 1:
            raise ValueError(f"{at}.name: got it more than once, expected each table once")
        for name in ("num_embeddings", "embedding_dim"):
            if getattr(table, name) < 1:
                raise ValueError(f"{at}.{name}: got {getattr(table, name)}, expected at least 1")
        if not table.feature_names:
            raise ValueError(f"{at}.feature_names: got none, expected at least one")
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
