"""The configuration of a training, validated once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from recsys.train.data.examples import Dataset

FACTORY = "recsys.models.click:build_dlrm"


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The sizes of a DLRM.

    Attributes:
        embedding_dim: D of every table.
        dense_layers: Sizes of the layers on the dense features; a last one of D is added.
        over_layers: Sizes of the layers over the interactions; a last one of 1 is added.
    """

    embedding_dim: int = 16
    dense_layers: tuple[int, ...] = (64,)
    over_layers: tuple[int, ...] = (64, 32)

    def __post_init__(self) -> None:
        sizes = (self.embedding_dim, *self.dense_layers, *self.over_layers)
        if min(sizes) < 1 or not self.over_layers:
            raise ValueError(f"model sizes: got {self}, expected sizes of at least 1 and one over layer")

    def arguments(self, dataset: Dataset) -> dict[str, object]:
        """Return the factory's arguments for a model of the data set: plain data."""
        tables = [
            {
                "name": table.name,
                "num_embeddings": table.num_embeddings,
                "embedding_dim": self.embedding_dim,
                "feature_names": list(table.feature_names),
                "pooling": table.pooling,
            }
            for table in dataset.tables
        ]
        return {
            "tables": tables,
            "dense_in_features": len(dataset.dense_names),
            "dense_arch_layer_sizes": [*self.dense_layers, self.embedding_dim],
            "over_arch_layer_sizes": [*self.over_layers, 1],
        }


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train.

    Attributes:
        epochs: Epochs over the training examples.
        batch_size: B.
        seed: The seed of the initialization and of the order of examples.
        optimizer: The optimizer of the dense layers, "adam" or "adagrad"; tables are trained with row-wise Adagrad.
        learning_rate: The learning rate of the dense layers.
        row_learning_rate: The learning rate of the tables.
        row_weight_decay: The weight decay of the tables' touched rows.
    """

    epochs: int = 1
    batch_size: int = 512
    seed: int = 0
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    row_learning_rate: float = 0.05
    row_weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.optimizer not in ("adam", "adagrad"):
            raise ValueError(f"optimizer: got {self.optimizer!r}, expected 'adam' or 'adagrad'")
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least 1")
        if self.seed < 0:
            raise ValueError(f"seed: got {self.seed}, expected at least 0")
        for name in ("learning_rate", "row_learning_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected a number above 0")
        if not 0 <= self.row_weight_decay < math.inf:
            raise ValueError(f"row_weight_decay: got {self.row_weight_decay}, expected at least 0")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What a run does beside training; none of it changes the model.

    Attributes:
        prefetch: Batches that are read ahead.
        log_every: Steps between two measurements of the training examples.
    """

    prefetch: int = 4
    log_every: int = 500

    def __post_init__(self) -> None:
        for name in ("prefetch", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least 1")
