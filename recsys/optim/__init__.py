"""Optimizers of recommendation models: fused into the lookup's backward pass, and separate."""

from __future__ import annotations

from fbgemm_gpu.split_embedding_configs import EmbOptimType

from recsys.optim.accumulation import AccumulatingOptimizer
from recsys.optim.clipping import GradientClipping, GradientClippingOptimizer
from recsys.optim.combined import CombinedOptimizer, OptimizerWrapper
from recsys.optim.fused import FusedKernel, FusedOptimizer
from recsys.optim.fused_config import FusedConfig
from recsys.optim.in_backward import (
    apply_optimizer_in_backward,
    fused_config_of,
    in_backward_optimizer_filter,
    mark_in_backward,
)
from recsys.optim.keyed import KeyedOptimizer, KeyedOptimizerWrapper
from recsys.optim.layerwise import LAMB, LarsSGD, PartialRowWiseAdam, PartialRowWiseLAMB
from recsys.optim.rowwise_adagrad import RowWiseAdagrad
from recsys.optim.state import recut_row_state
from recsys.optim.warmup import WarmupOptimizer, WarmupPolicy, WarmupStage

__all__ = [
    "LAMB",
    "AccumulatingOptimizer",
    "CombinedOptimizer",
    "EmbOptimType",
    "FusedConfig",
    "FusedKernel",
    "FusedOptimizer",
    "GradientClipping",
    "GradientClippingOptimizer",
    "KeyedOptimizer",
    "KeyedOptimizerWrapper",
    "LarsSGD",
    "OptimizerWrapper",
    "PartialRowWiseAdam",
    "PartialRowWiseLAMB",
    "RowWiseAdagrad",
    "WarmupOptimizer",
    "WarmupPolicy",
    "WarmupStage",
    "apply_optimizer_in_backward",
    "fused_config_of",
    "in_backward_optimizer_filter",
    "mark_in_backward",
    "recut_row_state",
]
