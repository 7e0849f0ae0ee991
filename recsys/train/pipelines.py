"""Further pipelines by TorchRec's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.sharding.sharded import ShardedCollection
from recsys.train.pipeline import In, Out, TrainPipeline, TrainPipelineSparseDist, record


class TrainPipelineBase(TrainPipeline[In, Out]):
    """Trains a model batch by batch, while the next batch is copied to the device.

    The model maps a batch to ``(loss, output)``. KeyedJaggedTensors go to the device too, unless the model is sharded:
    sharded collections split them in host memory.

    Args:
        model: Any model.
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
        self._model = model
        self._forward: Callable[[In], Any] = custom_model_fwd or model
        self._optimizer = optimizer
        self._device = torch.device(device)
        self._stays = any(isinstance(part, ShardedCollection) for part in model.modules())
        self._copies = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._next: In | None = None

    def progress(self, dataloader_iter: Iterator[In]) -> Out:
        """Run one step on the batch that was taken before, and start copying the iterator's next one.

        Raises:
            StopIteration: The iterator has ended and all its batches are done.
        """
        batch = self._next if self._next is not None else self._taken(dataloader_iter)
        if batch is None:
            raise StopIteration
        if self._copies is not None:
            present = torch.cuda.current_stream(self._device)
            present.wait_stream(self._copies)
            record(batch, present)
        if self._model.training:
            self._optimizer.zero_grad()
        loss, output = self._forward(batch)
        self._next = self._taken(dataloader_iter)
        if self._model.training:
            loss.sum().backward()
            self._optimizer.step()
        return cast(Out, output)

    def reset(self) -> None:
        """Forget the batch that was taken and not trained."""
        self._next = None

    def _taken(self, batches: Iterator[In]) -> In | None:
        batch = next(batches, None)
        if batch is None or not hasattr(batch, "to"):
            return batch
        if self._stays and isinstance(batch, KeyedJaggedTensor):
            return batch
        with torch.cuda.stream(self._copies):  # for None, nothing
            moved: Any = batch.to(self._device, non_blocking=True)
        if self._stays and moved is not batch:
            for name, value in vars(batch).items() if hasattr(batch, "__dict__") else ():
                if isinstance(value, KeyedJaggedTensor):
                    object.__setattr__(moved, name, value)  # batches may be frozen
        return cast(In, moved)


class EvalPipelineSparseDist(TrainPipelineSparseDist[In, Out]):
    """Runs the forward pass batch by batch, while the next batch is in transit; no optimizer steps.

    Args:
        model: As ``TrainPipelineSparseDist``.
        optimizer: Not used.
        device: The device of this rank.
        apply_jit: False.
        pipeline_postproc: Has no effect on results.
        enable_inplace_copy_batch: Has no effect on results.
        free_features_storage_early: Has no effect on results.
        clear_data_dist_inputs: Has no effect on results.
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

    Args:
        model: As ``TrainPipelineSparseDist``, like all others.
        optimizer: As there.
        device: As there.
        execute_all_batches: As there.
        apply_jit: As there.
        pipeline_postproc: As there.
        custom_model_fwd: As there.
        enable_inplace_copy_batch: As there.
        free_features_storage_early: As there.
        clear_data_dist_inputs: As there.
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
