"""The training loop: one process, binary cross entropy, metrics on held-out examples.

Shape letters: B batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from recsys.models.click import ClickModel, build_dlrm
from recsys.train.examples import Batch, Dataset, batches
from recsys.train.metrics import Metrics, measure
from recsys.train.touched_rows import TouchedRows

FACTORY = "recsys.models.click:build_dlrm"
_EVAL_BATCH_SIZE = 4096


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The sizes of a DLRM.

    Attributes:
        embedding_dim: D of every table.
        dense_layers: sizes of the layers on the dense features; a last one of D is added.
        over_layers: sizes of the layers over the interactions; a last one of 1 is added.
    """

    embedding_dim: int = 16
    dense_layers: tuple[int, ...] = (64,)
    over_layers: tuple[int, ...] = (64, 32)

    def __post_init__(self) -> None:
        sizes = (self.embedding_dim, *self.dense_layers, *self.over_layers)
        if min(sizes) < 1 or not self.over_layers:
            raise ValueError(f"model sizes: got {self}, expected sizes of at least 1 and one over layer")

    def arguments(self, dataset: Dataset) -> dict[str, object]:
        """The factory's arguments for a model of the data set: plain data."""
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
        epochs: passes over the training examples.
        batch_size: B.
        seed: of the initialization and of the order of examples.
        optimizer: of the dense layers, "adam" or "adagrad"; tables are trained with row-wise Adagrad.
        learning_rate: of the dense layers.
        row_learning_rate: of the tables.
        row_weight_decay: of the tables' touched rows.
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
class Epoch:
    """One pass: its number from 1, the mean training loss during it, and the metrics after it."""

    number: int
    train_loss: float
    held_out: Metrics


class DivergedError(RuntimeError):
    """The training went astray; lower learning rates help."""


class Watcher:
    """What a caller may want to hear while training runs; this one hears nothing."""

    def batch_done(self, num_rows: int) -> None:
        """A training batch of so many rows is done."""

    def epoch_done(self, epoch: Epoch) -> None:
        """A pass is done and measured."""


def train(
    dataset: Dataset,
    model_config: ModelConfig,
    config: TrainConfig,
    watcher: Watcher | None = None,
) -> tuple[ClickModel, list[Epoch]]:
    """Build and train a model; the same seed, threads and versions give the same model bit for bit.

    Args:
        dataset: the examples.
        model_config: the model's sizes.
        config: how to train.
        watcher: told of the progress.

    Returns:
        the model and what was measured after each epoch.

    Raises:
        ValueError: the sizes do not fit, or a data file is malformed.
        DivergedError: the loss is no longer a number.
    """
    watcher = watcher or Watcher()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = build_dlrm(**model_config.arguments(dataset))  # type: ignore[arg-type]
    generator = np.random.default_rng(config.seed)
    stepper = _Stepper(model, config)
    epochs: list[Epoch] = []
    for number in range(1, config.epochs + 1):
        total = torch.zeros((), dtype=torch.float64)
        for batch in batches(dataset.train(), config.batch_size, generator):
            total += stepper.step(batch) * len(batch.labels)
            watcher.batch_done(len(batch.labels))
        train_loss = float(total) / dataset.num_train_rows
        if not math.isfinite(train_loss):
            raise DivergedError(f"the loss became {train_loss}: lower the learning rates")
        stepper.rows.clear_untrained()
        epochs.append(Epoch(number=number, train_loss=train_loss, held_out=evaluate(model, dataset)))
        watcher.epoch_done(epochs[-1])
    return model.eval(), epochs


@torch.no_grad()
def evaluate(model: ClickModel, dataset: Dataset) -> Metrics:
    """The metrics of a model on the held-out examples."""
    scored = [
        (model.logits(batch.dense, batch.kjt), batch.labels)
        for batch in batches(dataset.held_out(), _EVAL_BATCH_SIZE, None)
    ]
    logits, labels = (torch.cat(parts).numpy() for parts in zip(*scored, strict=True))
    return measure(logits, labels)


class _Stepper:
    """One optimizer for the dense layers, one for the touched rows of the tables."""

    def __init__(self, model: ClickModel, config: TrainConfig) -> None:
        self.rows = TouchedRows(
            model.model, learning_rate=config.row_learning_rate, weight_decay=config.row_weight_decay
        )
        names = self.rows.parameter_names()
        dense = [parameter for name, parameter in model.model.named_parameters() if name not in names]
        self._dense: torch.optim.Optimizer = (
            torch.optim.Adam(dense, lr=config.learning_rate)
            if config.optimizer == "adam"
            else torch.optim.Adagrad(dense, lr=config.learning_rate)
        )

    def step(self, batch: Batch) -> Tensor:
        """Learn from one batch; returns its mean loss, a scalar."""
        self._dense.zero_grad()
        logits, touched = self.rows.forward(batch)
        loss = functional.binary_cross_entropy_with_logits(logits.squeeze(1), batch.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self._dense.step()
        self.rows.step(touched)
        return loss.detach()
