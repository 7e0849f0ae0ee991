"""Optimizers of recommendation models: fused into the lookup's backward pass, and beside it."""

from __future__ import annotations

from fbgemm_gpu.split_embedding_configs import EmbOptimType

from recsys.optim.combined import CombinedOptimizer, OptimizerWrapper
from recsys.optim.fused_config import FusedConfig
from recsys.optim.keyed import KeyedOptimizer, KeyedOptimizerWrapper
from recsys.optim.rowwise_adagrad import RowWiseAdagrad

__all__ = [
    "CombinedOptimizer",
    "EmbOptimType",
    "FusedConfig",
    "KeyedOptimizer",
    "KeyedOptimizerWrapper",
    "OptimizerWrapper",
    "RowWiseAdagrad",
]
