"""The optimizers of a training: fused ones of the lookups, those of tables with gradients and of dense layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from recsys.embedding import FloatCollection
from recsys.model_parallel import DistributedModelParallel
from recsys.optim import (
    AccumulatingOptimizer,
    CombinedOptimizer,
    EmbOptimType,
    FusedConfig,
    GradientClipping,
    GradientClippingOptimizer,
    KeyedOptimizer,
    KeyedOptimizerWrapper,
    RowWiseAdagrad,
)
from recsys.optim.fused_config import WeightDecayMode
from recsys.sharding.sharders import (
    EmbeddingBagCollectionSharder,
    EmbeddingCollectionSharder,
    ModuleSharder,
)
from recsys.sharding.table_shards import TableShards
from recsys.train.config import TrainConfig


class Optimizers(CombinedOptimizer):
    """All optimizers as one. Gradients are dropped after each step: keeping them takes a pass of zeros and a sum.

    Args:
        model: The sharded model.
        config: How to train.
    """

    def __init__(self, model: DistributedModelParallel, config: TrainConfig) -> None:
        self._rows: list[KeyedOptimizer] = [model.fused_optimizer]
        self._dense = None if config.freeze_dense else _dense_optimizer(model, config)
        tables = tables_with_gradients(model)
        if tables:
            self._rows.append(_row_optimizer(tables, config))
        dense = [] if self._dense is None else [self._dense]
        super().__init__([model.fused_optimizer, *dense, *self._rows[1:]])
        self._config = config

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop gradients."""
        super().zero_grad(set_to_none)

    @property
    def is_waiting(self) -> bool:
        """Whether there are gradients that no step has used."""
        return self._dense is not None and self._dense.is_waiting

    def flush(self) -> None:
        """Step the dense layers on gradients that wait for further batches."""
        if self._dense is not None:
            self._dense.flush()

    def set_rates(self, dense_factor: float, row_factor: float) -> None:
        """Set the learning rates to shares of the configured ones, before the lookups of a step."""
        if self._dense is not None:
            for group in self._dense.param_groups:
                group["lr"] = self._config.learning_rate * dense_factor
        for optimizer in self._rows:
            for group in optimizer.param_groups:
                group["lr"] = self._config.row_learning_rate * row_factor


def sharders(config: TrainConfig, *, fused_decay: bool) -> list[ModuleSharder[Any]]:
    """Return the sharders, whose lookups train tables by the config.

    Args:
        config: How to train.
        fused_decay: Whether lookups decay rows too.
    """
    decay = config.row_weight_decay if fused_decay else 0.0
    clip = config.row_clip_value
    fused_params = {
        "optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        "learning_rate": config.row_learning_rate,
        "weight_decay": decay,
        "weight_decay_mode": WeightDecayMode.L2 if decay else WeightDecayMode.NONE,
        **({} if clip is None else {"gradient_clipping": True, "max_gradient": clip}),
    }
    return [EmbeddingBagCollectionSharder(fused_params), EmbeddingCollectionSharder(fused_params)]


def freeze_dense(model: nn.Module) -> None:
    """Exclude all parameters but the tables' from training."""
    of_tables = {
        id(p) for part in model.modules() if isinstance(part, FloatCollection) for p in part.parameters()
    }
    for parameter in model.parameters():
        if id(parameter) not in of_tables:
            parameter.requires_grad_(False)


def tables_with_gradients(model: DistributedModelParallel) -> dict[str, nn.Parameter]:
    """Return this rank's tables and shards of the dense kernel, by name."""
    plain = [part for part in model.modules() if isinstance(part, TableShards) and not part.is_fused]
    held = {id(parameter) for part in plain for parameter in part.parameters()}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in held}


def _dense_optimizer(model: DistributedModelParallel, config: TrainConfig) -> AccumulatingOptimizer:
    of_tables = {
        id(p) for part in model.modules() if isinstance(part, TableShards) for p in part.parameters()
    }
    dense = {name: p for name, p in model.named_parameters() if id(p) not in of_tables}

    def plain(parameters: list[Tensor]) -> torch.optim.Optimizer:
        kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.Adagrad
        # One pass over all parameters in host memory; elsewhere torch chooses.
        is_fused = all(parameter.device.type == "cpu" for parameter in parameters) or None
        return kind(parameters, lr=config.learning_rate, fused=is_fused)

    optimizer: KeyedOptimizer = KeyedOptimizerWrapper(dense, plain)
    if config.clip_norm is not None:
        optimizer = GradientClippingOptimizer(optimizer, GradientClipping.NORM, config.clip_norm)
    return AccumulatingOptimizer(optimizer, config.accumulate)


def _row_optimizer(tables: dict[str, nn.Parameter], config: TrainConfig) -> KeyedOptimizer:
    if config.row_clip_value is not None:
        raise ValueError(
            f"row_clip_value: got {config.row_clip_value} with the table {next(iter(tables))}, which is not trained in "
            "its lookup, expected none: give tables an embedding_dim of a multiple of 4 and a fused kernel"
        )
    return KeyedOptimizerWrapper(
        tables,
        lambda parameters: RowWiseAdagrad(
            parameters,
            lr=config.row_learning_rate,
            eps=FusedConfig.eps,  # as where rows are updated in the backward pass
            weight_decay=config.row_weight_decay,
        ),
    )
