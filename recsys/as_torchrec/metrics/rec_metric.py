"""A metric of several tasks, from a model's outputs to numbers by key.

Shape letters: N number of examples, T number of tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from recsys.as_torchrec.metrics.computation import (
    MetricComputationReport,
    RecMetricComputation,
    RecMetricException,
)
from recsys.as_torchrec.metrics.config import RecComputeMode, RecTaskInfo
from recsys.as_torchrec.metrics.names import MetricNamespaceBase, compose_metric_key

RecModelOutput = Tensor | dict[str, Tensor]


class RecMetric(nn.Module):
    """A metric. One of your own names its namespace and its computation.

    Args:
        world_size: Number of ranks.
        my_rank: This rank; the first one gets the numbers.
        batch_size: Examples of a batch of a rank.
        tasks: The T tasks.
        compute_mode: Whether all tasks are computed at once.
        window_size: Examples of the window, of all ranks together.
        fused_update_limit: Batches that are collected for an update; 0 for each at once.
        compute_on_all_ranks: Whether every rank gets the numbers.
        should_validate_update: Whether batches whose weights are all 0 are left out.
        process_group: The ranks; None for all.
        kwargs: More keywords of the computation.

    Raises:
        ValueError: The window is smaller than a batch, or all tasks at once are to be collected too.
    """

    _namespace: MetricNamespaceBase
    _computation_class: type[RecMetricComputation]

    PREDICTIONS = "predictions"
    LABELS = "labels"
    WEIGHTS = "weights"

    def __init__(  # noqa: PLR0913 (TorchRec's signature)
        self,
        world_size: int,
        my_rank: int,
        batch_size: int,
        tasks: list[RecTaskInfo],
        compute_mode: RecComputeMode = RecComputeMode.UNFUSED_TASKS_COMPUTATION,
        window_size: int = 100,
        fused_update_limit: int = 0,
        compute_on_all_ranks: bool = False,
        should_validate_update: bool = False,
        process_group: dist.ProcessGroup | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        local_window = math.ceil(window_size / world_size)
        if local_window < batch_size:
            raise ValueError(
                f"window_size: got {window_size}, {local_window} on each of {world_size} ranks, expected {batch_size} "
                "on each at least, one batch"
            )
        if compute_mode.is_fused and fused_update_limit > 0:
            raise ValueError(
                f"fused_update_limit: got {fused_update_limit} with compute_mode {compute_mode.name}, expected 0"
            )
        self._tasks, self._compute_mode = tasks, compute_mode
        self._fused_update_limit = fused_update_limit
        self._should_validate_update = should_validate_update
        self._clones = bool(kwargs.pop("should_clone_update_inputs", False))
        kwargs.pop("batch_size_stages", None)
        self._required_inputs: set[str] = set()
        self._waiting: list[tuple[RecModelOutput, RecModelOutput, RecModelOutput | None]] = []
        self._metrics_computations = nn.ModuleList(
            self._computation_class(
                my_rank=my_rank,
                batch_size=batch_size,
                n_tasks=len(tasks) if compute_mode.is_fused else 1,
                window_size=local_window,
                compute_on_all_ranks=compute_on_all_ranks,
                should_validate_update=should_validate_update,
                compute_mode=compute_mode,
                process_group=process_group,
                fused_update_limit=fused_update_limit,
                **kwargs,
            )
            for _ in range(1 if compute_mode.is_fused else len(tasks))
        )

    @property
    def _computations(self) -> list[RecMetricComputation]:
        return cast(list[RecMetricComputation], list(self._metrics_computations))

    def update(
        self,
        *,
        predictions: RecModelOutput,
        labels: RecModelOutput,
        weights: RecModelOutput | None,
        **kwargs: Any,
    ) -> None:
        """Take a batch: for each task, by name, a tensor ``[N]``; or tensors ``[T, N]`` of all, if these are fused."""
        if self._clones:
            predictions, labels = _cloned(predictions), _cloned(labels)
            weights = None if weights is None else _cloned(weights)
        if self._fused_update_limit <= 0:
            self._update(predictions, labels, weights, **kwargs)
            return
        self._waiting.append((predictions, labels, weights))
        if len(self._waiting) >= self._fused_update_limit:
            self._take_waiting()

    def _take_waiting(self) -> None:
        if not self._waiting:
            return
        predictions, labels, weights = zip(*self._waiting, strict=True)
        self._waiting = []
        self._update(_joined(predictions), _joined(labels), None if weights[0] is None else _joined(weights))

    @torch.no_grad()
    def _update(
        self,
        predictions: RecModelOutput,
        labels: RecModelOutput,
        weights: RecModelOutput | None,
        **kwargs: Any,
    ) -> None:
        if self._compute_mode.is_fused:
            all_weights = None if weights is None else self._stacked(weights)
            self._update_one(
                self._computations[0],
                self._stacked(predictions),
                self._stacked(labels),
                all_weights,
                **kwargs,
            )
            return
        for task, computation in zip(self._tasks, self._computations, strict=True):
            if isinstance(predictions, Tensor) or (
                task.name in predictions and predictions[task.name].numel()
            ):
                of_task = None if weights is None else _of(weights, task)
                self._update_one(computation, _of(predictions, task), _of(labels, task), of_task, **kwargs)

    def _stacked(self, of: RecModelOutput) -> Tensor:
        return of if isinstance(of, Tensor) else torch.stack([of[task.name] for task in self._tasks])

    def _update_one(
        self,
        computation: RecMetricComputation,
        predictions: Tensor,
        labels: Tensor,
        weights: Tensor | None,
        **kwargs: Any,
    ) -> None:
        num_tasks = len(self._tasks) if self._compute_mode.is_fused else 1
        # Predictions of several classes have one dimension more.
        classes = () if predictions.dim() == labels.dim() else (predictions.shape[-1],)
        predictions = predictions.reshape(num_tasks, -1, *classes)
        labels = labels.reshape(num_tasks, -1)
        weights = torch.ones_like(labels) if weights is None else weights.reshape(num_tasks, -1)
        if self._should_validate_update:
            is_valid = weights.count_nonzero(dim=-1) > 0
            if not bool(is_valid.any()):
                return
            cast(Tensor, computation.has_valid_update).logical_or_(is_valid)
        computation.update(predictions=predictions, labels=labels, weights=weights, **kwargs)

    def compute(self) -> dict[str, Tensor]:
        """Return the numbers of all ranks by key, ``[1]`` each (a scalar of fused tasks); every rank calls this."""
        self._take_waiting()
        return dict(self._numbers("compute", ""))

    def local_compute(self) -> dict[str, Tensor]:
        """Return the numbers of this rank by key."""
        self._take_waiting()
        return dict(self._numbers("local_compute", "local_"))

    def _numbers(self, method: str, scope: str) -> Iterator[tuple[str, Tensor]]:
        for i, computation in enumerate(self._computations):
            computation.pre_compute()
            tasks = self._tasks if self._compute_mode.is_fused else [self._tasks[i]]
            reports: list[MetricComputationReport] = getattr(computation, method)()
            for report in reports:
                values = report.value if self._compute_mode.is_fused else [report.value]
                for j, (task, value) in enumerate(zip(tasks, values, strict=True)):
                    if self._should_validate_update and not cast(Tensor, computation.has_valid_update)[j]:
                        value = torch.zeros_like(value)
                    prefix: Any = f"{scope}{report.metric_prefix}"
                    yield (
                        compose_metric_key(
                            self._namespace, task.name, report.name, prefix, report.description
                        ),
                        value,
                    )

    def sync(self) -> None:
        """Exchange this rank's states for those of all ranks, until ``unsync``."""
        for computation in self._computations:
            computation.sync()

    def unsync(self) -> None:
        """Put this rank's states back."""
        for computation in self._computations:
            computation.unsync()

    def reset(self) -> None:
        """Forget all batches."""
        for computation in self._computations:
            computation.reset()

    def get_required_inputs(self) -> set[str]:
        """Return the model outputs that the metric takes beside predictions, labels and weights."""
        return self._required_inputs

    def get_memory_usage(self) -> dict[Tensor, int]:
        """Return the bytes of each tensor that the metric keeps."""
        kept: list[Tensor] = [
            tensor for outputs in self._waiting for of in outputs if of is not None for tensor in _tensors(of)
        ]
        for computation in self._computations:
            kept += computation.kept_tensors()
        return {tensor: tensor.numel() * tensor.element_size() for tensor in kept}

    def state_dict(  # type: ignore[override]
        self, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Return the states, after what was collected is taken."""
        self._take_waiting()
        states: dict[str, Any] = {} if destination is None else destination
        return super().state_dict(destination=states, prefix=prefix, keep_vars=keep_vars)


class RecMetricList(nn.Module):
    """Several metrics that take the same batches.

    Args:
        rec_metrics: The metrics.
    """

    def __init__(self, rec_metrics: list[RecMetric]) -> None:
        super().__init__()
        self.rec_metrics = nn.ModuleList(rec_metrics)

    def __len__(self) -> int:
        return len(self.rec_metrics)

    def __getitem__(self, idx: int) -> nn.Module:
        return self.rec_metrics[idx]

    @property
    def _metrics(self) -> list[RecMetric]:
        return cast(list[RecMetric], list(self.rec_metrics))

    def get_required_inputs(self) -> list[str] | None:
        """Return the model outputs that a metric takes beside the usual ones; None if none does."""
        return sorted({name for metric in self._metrics for name in metric.get_required_inputs()}) or None

    def update(
        self,
        *,
        predictions: RecModelOutput,
        labels: RecModelOutput,
        weights: RecModelOutput | None,
        **kwargs: Any,
    ) -> None:
        """Take a batch; see ``RecMetric.update``."""
        for metric in self._metrics:
            metric.update(predictions=predictions, labels=labels, weights=weights, **kwargs)

    def compute(self) -> dict[str, Tensor]:
        """Return all numbers of all ranks by key; every rank calls this."""
        return {key: value for metric in self._metrics for key, value in metric.compute().items()}

    def local_compute(self) -> dict[str, Tensor]:
        """Return all numbers of this rank by key."""
        return {key: value for metric in self._metrics for key, value in metric.local_compute().items()}

    def sync(self) -> None:
        """Exchange this rank's states for those of all ranks, until ``unsync``."""
        for metric in self._metrics:
            metric.sync()

    def unsync(self) -> None:
        """Put this rank's states back."""
        for metric in self._metrics:
            metric.unsync()

    def reset(self) -> None:
        """Forget all batches."""
        for metric in self._metrics:
            metric.reset()


def _of(outputs: RecModelOutput, task: RecTaskInfo) -> Tensor:
    if isinstance(outputs, Tensor):
        raise RecMetricException(
            "predictions, labels, weights: got a tensor, expected one for each task, by name"
        )
    return outputs[task.name]


def _tensors(output: RecModelOutput) -> list[Tensor]:
    return [output] if isinstance(output, Tensor) else list(output.values())


def _cloned(output: RecModelOutput) -> RecModelOutput:
    return output.clone() if isinstance(output, Tensor) else {k: v.clone() for k, v in output.items()}


def _joined(outputs: Sequence[RecModelOutput]) -> RecModelOutput:
    if isinstance(outputs[0], Tensor):
        return torch.cat(cast(list[Tensor], list(outputs)))
    by_name: dict[str, list[Tensor]] = {}
    for output in cast(Sequence[Mapping[str, Tensor]], outputs):
        for name, tensor in output.items():
            by_name.setdefault(name, []).append(tensor)
    return {name: torch.cat(tensors) for name, tensors in by_name.items()}
