"""Further pipelines by TorchRec's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from recsys.sharding.sharded import ShardedCollection
from recsys.train.stepping.pipeline import In, Out, TrainPipelineSparseDist


class TrainPipelineBase(TrainPipelineSparseDist[In, Out]):
    """Trains a model batch by batch, while the next batch is copied to the device.

    KeyedJaggedTensors go to the device too, unless the model is sharded: sharded collections split them in host memory.

    Args:
        model: Any model that maps a batch to ``(loss, output)``.
        optimizer: The optimizer of all parameters that the lookups do not train.
        device: The device of this rank.
        custom_model_fwd: Called with the batch instead of the model.
        enable_inplace_copy_batch: Has no effect on results.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        custom_model_fwd: Callable[[In], tuple[Tensor, Any]] | None = None,
        enable_inplace_copy_batch: bool = False,
    ) -> None:
        del enable_inplace_copy_batch
        super().__init__(model, optimizer, device, custom_model_fwd=custom_model_fwd)
        self._places = {}  # nothing is sent ahead
        self._is_sharded = any(isinstance(part, ShardedCollection) for part in model.modules())

    def _moved(self, batch: In) -> In:
        if self._is_sharded or not hasattr(batch, "to"):
            return super()._moved(batch)
        return cast(In, batch.to(self._device, non_blocking=True))


class EvalPipelineSparseDist(TrainPipelineSparseDist[In, Out]):
    """Runs the forward pass batch by batch, while the next batch is in transit; no optimizer steps.

    Arguments are those of ``TrainPipelineSparseDist``.
    """

    _trains = False

    def __init__(  # noqa: PLR0913  (TorchRec's)
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        apply_jit: bool = False,
        pipeline_postproc: bool = False,
        enable_inplace_copy_batch: bool = False,
        free_features_storage_early: bool = False,
        clear_data_dist_inputs: bool = False,
    ) -> None:
        del pipeline_postproc, enable_inplace_copy_batch, free_features_storage_early, clear_data_dist_inputs
        super().__init__(model, optimizer, device, apply_jit=apply_jit)


class PrefetchTrainPipelineSparseDist(TrainPipelineSparseDist[In, Out]):
    """``TrainPipelineSparseDist``: rows of caches (``fused_uvm_caching``) are fetched by the lookup itself.

    Arguments are the same.
    """

    def __init__(  # noqa: PLR0913  (TorchRec's)
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        execute_all_batches: bool = True,
        apply_jit: bool = False,
        pipeline_postproc: bool = True,
        custom_model_fwd: Callable[[In], tuple[Tensor, Out]] | None = None,
        enable_inplace_copy_batch: bool = False,
        free_features_storage_early: bool = False,
        clear_data_dist_inputs: bool = False,
    ) -> None:
        del pipeline_postproc, enable_inplace_copy_batch, free_features_storage_early, clear_data_dist_inputs
        super().__init__(
            model,
            optimizer,
            device,
            execute_all_batches=execute_all_batches,
            apply_jit=apply_jit,
            custom_model_fwd=custom_model_fwd,
        )
