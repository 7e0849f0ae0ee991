"""All metrics of a training job, made of a config and fed with a model's outputs."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from recsys.as_torchrec.metrics.auc import AUCMetric
from recsys.as_torchrec.metrics.config import (
    BatchSizeStage,
    MetricsConfig,
    RecMetricDef,
    RecMetricEnum,
    RecMetricEnumBase,
    RecTaskInfo,
    StateMetricEnum,
)
from recsys.as_torchrec.metrics.names import (
    MetricNamespace,
    compose_customized_metric_key,
    compose_metric_namespace,
)
from recsys.as_torchrec.metrics.rec_metric import RecMetric, RecMetricList
from recsys.as_torchrec.metrics.sums import CalibrationMetric, CTRMetric, MSEMetric, NEMetric
from recsys.as_torchrec.metrics.throughput import ThroughputMetric

MetricValue = Tensor | float
#: The class of each metric; add those of your own.
REC_METRICS_MAPPING: dict[RecMetricEnumBase, type[RecMetric]] = {
    RecMetricEnum.NE: NEMetric,
    RecMetricEnum.CTR: CTRMetric,
    RecMetricEnum.CALIBRATION: CalibrationMetric,
    RecMetricEnum.AUC: AUCMetric,
    RecMetricEnum.MSE: MSEMetric,
}


class StateMetric(ABC):
    """A part of a training job that reports numbers of its own."""

    @abstractmethod
    def get_metrics(self) -> dict[str, MetricValue]:
        """Return the numbers by name."""


class DeferrableMetrics(dict[str, Any]):
    """Numbers by key. TorchRec's may come later; these are there at once.

    Args:
        inner: The numbers.
    """

    def __init__(self, inner: Mapping[str, Any]) -> None:
        super().__init__(inner)

    def resolve(self) -> dict[str, Any]:
        """Return the numbers."""
        return self

    def is_resolved(self) -> bool:
        """Return True."""
        return True

    def subscribe(
        self,
        callback: Callable[[dict[str, Any]], None],
        on_error: Callable[[Exception], None] | None = None,  # noqa: ARG002 (there is none to wait for)
    ) -> None:
        """Call a function with the numbers."""
        callback(self)


class RecMetricModule(nn.Module):
    """Metrics, throughput and the numbers of a job's parts.

    Args:
        batch_size: Examples of a batch of a rank.
        world_size: Number of ranks.
        rec_tasks: The tasks whose outputs are taken.
        rec_metrics: The metrics.
        throughput_metric: The throughput.
        state_metrics: Parts that report numbers of their own, by first part of the key.
        compute_interval_steps: Batches from one ``should_compute`` to the next.
        min_compute_interval: Least seconds between them. The number of batches is adjusted at the second ``compute``.
        max_compute_interval: Most seconds between them.

    Raises:
        ValueError: An interval is below 0.
    """

    def __init__(  # noqa: PLR0913 (TorchRec's signature)
        self,
        batch_size: int,
        world_size: int,
        rec_tasks: list[RecTaskInfo] | None = None,
        rec_metrics: RecMetricList | None = None,
        throughput_metric: ThroughputMetric | None = None,
        state_metrics: dict[str, StateMetric] | None = None,
        compute_interval_steps: int = 100,
        min_compute_interval: float = 0.0,
        max_compute_interval: float = float("inf"),
    ) -> None:
        super().__init__()
        if min_compute_interval < 0 or max_compute_interval <= 0:
            raise ValueError(
                f"min_compute_interval, max_compute_interval: got {min_compute_interval} and {max_compute_interval}, "
                "expected seconds"
            )
        self.rec_tasks = rec_tasks or []
        self.rec_metrics = RecMetricList([]) if rec_metrics is None else rec_metrics
        self.throughput_metric = throughput_metric
        self.state_metrics = state_metrics or {}
        self.trained_batches = 0
        self.batch_size, self.world_size = batch_size, world_size
        self.compute_count = 0
        self.compute_interval_steps = compute_interval_steps
        self.min_compute_interval, self.max_compute_interval = min_compute_interval, max_compute_interval
        self.last_compute_time = -1.0

    def update(self, model_out: dict[str, Tensor], **kwargs: Any) -> None:
        """Take the outputs of a batch: each task's labels, predictions and weights, by their names."""
        self._update_rec_metrics(model_out, **kwargs)
        if self.throughput_metric is not None:
            self.throughput_metric.update()
        self.trained_batches += 1

    def _update_rec_metrics(self, model_out: dict[str, Tensor], **kwargs: Any) -> None:
        if not self.rec_tasks or not len(self.rec_metrics):
            return
        columns: dict[str, dict[str, Tensor]] = {"labels": {}, "predictions": {}, "weights": {}}
        for task in self.rec_tasks:
            found = _outputs(task, model_out)
            if found[0].numel():
                for column, tensor in zip(columns.values(), found, strict=True):
                    column[task.name] = tensor
        required = self.get_required_inputs()
        if required:
            kwargs["required_inputs"] = {name: model_out[name].squeeze() for name in required}
        self.rec_metrics.update(**columns, **kwargs)

    def should_compute(self) -> bool:
        """Return whether it is time for ``compute``."""
        return self.trained_batches % self.compute_interval_steps == 0

    def compute(self) -> DeferrableMetrics:
        """Return all numbers of all ranks by key; every rank calls this."""
        self.compute_count += 1
        self._adjust_compute_interval()
        numbers = DeferrableMetrics(self.rec_metrics.compute())
        if self.throughput_metric is not None:
            numbers.update(self.throughput_metric.compute())
        for namespace, component in self.state_metrics.items():
            for name, value in component.get_metrics().items():
                numbers[compose_customized_metric_key(namespace, name)] = value
        return numbers

    def local_compute(self) -> DeferrableMetrics:
        """Return the metrics of this rank by key."""
        return DeferrableMetrics(self.rec_metrics.local_compute())

    def _adjust_compute_interval(self) -> None:
        """Choose the batches between two ``compute`` from the time between the first two."""
        if self.min_compute_interval == 0 and math.isinf(self.max_compute_interval):
            return
        now = time.monotonic()
        if self.last_compute_time >= 0:
            interval = now - self.last_compute_time
            least, most = self.min_compute_interval, self.max_compute_interval
            if not least <= interval <= most:
                # A second within the bound, or between both: steps do not always take the same time.
                wanted = (
                    least + 1 if math.isinf(most) else most - (most > 1) if not least else (least + most) / 2
                )
                steps = torch.tensor(max(int(wanted * self.compute_interval_steps / max(interval, 1e-9)), 1))
                if dist.is_available() and dist.is_initialized():
                    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
                self.compute_interval_steps = int(steps)
            self.min_compute_interval, self.max_compute_interval = 0.0, math.inf
        self.last_compute_time = now

    def sync(self) -> None:
        """Exchange this rank's states for those of all ranks, until ``unsync``."""
        self.rec_metrics.sync()

    def unsync(self) -> None:
        """Put this rank's states back."""
        self.rec_metrics.unsync()

    def reset(self) -> None:
        """Forget all batches."""
        self.rec_metrics.reset()

    def get_required_inputs(self) -> list[str] | None:
        """Return the model outputs that a metric takes beside the usual ones; None if none does."""
        return self.rec_metrics.get_required_inputs()


def _outputs(task: RecTaskInfo, model_out: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return a task's labels, predictions and weights.

    Raises:
        ValueError: The model does not have this output, or their numbers differ.
    """
    names = (task.label_name, task.prediction_name, task.weight_name)
    missing = [name for name in names if name not in model_out]
    if missing:
        raise ValueError(
            f"task {task.name!r}: got no model output {missing}, expected some of {list(model_out)}"
        )
    labels, predictions, weights = (model_out[name].squeeze() for name in names)
    num_classes = 1 if predictions.dim() == labels.dim() else predictions.shape[-1]
    if labels.numel() != weights.numel() or labels.numel() * num_classes != predictions.numel():
        shapes = {name: tuple(model_out[name].shape) for name in names}
        raise ValueError(
            f"task {task.name!r}: got outputs of shapes {shapes}, expected one number for each row"
        )
    return labels, predictions, weights


def generate_metric_module(  # noqa: PLR0913 (TorchRec's signature)
    metric_class: type[RecMetricModule],
    metrics_config: MetricsConfig,
    batch_size: int,
    world_size: int,
    my_rank: int,
    state_metrics_mapping: dict[StateMetricEnum, StateMetric],
    device: torch.device,
    process_group: dist.ProcessGroup | None = None,
    batch_size_stages: list[BatchSizeStage] | None = None,
    module_kwargs: dict[str, Any] | None = None,
) -> RecMetricModule:
    """Return the metrics of a config.

    Args:
        metric_class: ``RecMetricModule``, or a class of your own that takes the same.
        metrics_config: The config.
        batch_size: Examples of a batch of a rank.
        world_size: Number of ranks.
        my_rank: This rank.
        state_metrics_mapping: The parts that the config's ``state_metrics`` name.
        device: Where states lie.
        process_group: The ranks; None for all.
        batch_size_stages: Batch sizes that change, for the throughput.
        module_kwargs: More keywords of ``metric_class``.

    Raises:
        ValueError: A metric is unknown, or has no tasks.
    """
    config = metrics_config
    metrics = []
    for name, definition in config.rec_metrics.items():
        if name not in REC_METRICS_MAPPING:
            raise ValueError(
                f"rec_metrics: got {name}, expected some of {[str(known) for known in REC_METRICS_MAPPING]}; add a "
                "class of your own to recsys.as_torchrec.metrics.module.REC_METRICS_MAPPING"
            )
        metrics.append(
            REC_METRICS_MAPPING[name](
                world_size=world_size,
                my_rank=my_rank,
                batch_size=batch_size,
                tasks=_tasks(f"rec_metrics[{name}]", definition, config),
                compute_mode=config.rec_compute_mode,
                window_size=definition.window_size,
                fused_update_limit=config.fused_update_limit,
                compute_on_all_ranks=config.compute_on_all_ranks,
                should_validate_update=config.should_validate_update,
                process_group=process_group,
                should_clone_update_inputs=config.should_clone_update_inputs,
                **(definition.arguments or {}),
            )
        )
    throughput = config.throughput_metric
    spaces = {part: MetricNamespace(part.value) for part in config.state_metrics}
    module = metric_class(
        batch_size=batch_size,
        world_size=world_size,
        rec_tasks=config.rec_tasks,
        rec_metrics=RecMetricList(metrics),
        throughput_metric=None
        if throughput is None
        else ThroughputMetric(
            batch_size=batch_size,
            world_size=world_size,
            window_seconds=throughput.window_size,
            warmup_steps=throughput.warmup_steps,
            batch_size_stages=batch_size_stages,
        ),
        state_metrics={
            compose_metric_namespace(space, str(space)): state_metrics_mapping[part]
            for part, space in spaces.items()
        },
        compute_interval_steps=config.compute_interval_steps,
        min_compute_interval=config.min_compute_interval,
        max_compute_interval=config.max_compute_interval,
        **(module_kwargs or {}),
    )
    return module.to(device)


def _tasks(at: str, definition: RecMetricDef, config: MetricsConfig) -> list[RecTaskInfo]:
    if bool(definition.rec_tasks) == bool(definition.rec_task_indices):
        raise ValueError(f"{at}: got rec_tasks and rec_task_indices both or neither, expected one of them")
    return definition.rec_tasks or [config.rec_tasks[i] for i in definition.rec_task_indices]
