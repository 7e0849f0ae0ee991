"""What metrics to compute, by TorchRec's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from recsys.as_torchrec.metrics.names import StrValueMixin

_WINDOW_SIZE = 10_000_000


class RecMetricEnumBase(StrValueMixin, Enum):
    """Names of metrics in a config; metrics of your own bring their own."""


class RecMetricEnum(RecMetricEnumBase):
    """TorchRec's metrics that are here; others are left out."""

    NE = "ne"
    CTR = "ctr"
    AUC = "auc"
    CALIBRATION = "calibration"
    MSE = "mse"


@dataclass(unsafe_hash=True)
class SessionMetricDef:
    """The definition of a session metric, which tasks may carry; this package has no session metrics."""

    session_var_name: str
    top_threshold: int | None = None
    run_ranking_of_labels: bool = False


@dataclass(unsafe_hash=True)
class RecTaskInfo:
    """One task of a model.

    Attributes:
        name: Its name in keys.
        label_name: The model output with the labels.
        prediction_name: The model output with the predictions.
        weight_name: The model output with the weights of examples.
        session_metric_def: For metrics of sessions, which are not here.
        is_negative_task: For metrics that are not here.
        tensor_name: For metrics that are not here.
        weighted: For metrics that are not here.
    """

    name: str = "DefaultTask"
    label_name: str = "label"
    prediction_name: str = "prediction"
    weight_name: str = "weight"
    session_metric_def: SessionMetricDef | None = None
    is_negative_task: bool = False
    tensor_name: str | None = None
    weighted: bool = True


class RecComputeMode(Enum):
    """Whether a metric computes its tasks at once, from outputs of all of them; the last two are the same here."""

    FUSED_TASKS_COMPUTATION = 1
    UNFUSED_TASKS_COMPUTATION = 2
    FUSED_TASKS_AND_STATES_COMPUTATION = 3

    @property
    def is_fused(self) -> bool:
        """Whether all tasks are computed at once."""
        return self is not RecComputeMode.UNFUSED_TASKS_COMPUTATION


@dataclass
class RecMetricDef:
    """One metric of a config.

    Attributes:
        rec_tasks: Its tasks; or
        rec_task_indices: their positions in the config's.
        window_size: Examples of the window, of all ranks together.
        arguments: More keywords of the metric's class.
    """

    rec_tasks: list[RecTaskInfo] = field(default_factory=list)
    rec_task_indices: list[int] = field(default_factory=list)
    window_size: int = _WINDOW_SIZE
    arguments: dict[str, Any] | None = None


class StateMetricEnum(StrValueMixin, Enum):
    """Parts of a training job that report numbers of their own."""

    OPTIMIZERS = "optimizers"
    MODEL_CONFIGURATOR = "model_configurator"


@dataclass
class ThroughputDef:
    """Seconds of the throughput's window, and batches before it is measured."""

    window_size: int = 100
    warmup_steps: int = 100


@dataclass
class MetricsConfig:
    """All metrics of a training job.

    Attributes:
        rec_tasks: The model's tasks.
        rec_metrics: The metrics.
        throughput_metric: The throughput; None for none.
        rec_compute_mode: How metrics compute their tasks.
        fused_update_limit: Batches that are collected before metrics are updated; 0 for each at once.
        state_metrics: Parts that report numbers of their own.
        compute_interval_steps: Batches from one ``should_compute`` to the next.
        min_compute_interval: Least seconds between them; the number of batches is adjusted once.
        max_compute_interval: Most seconds between them.
        compute_on_all_ranks: Whether every rank gets the numbers, not the first one alone.
        should_validate_update: Whether batches whose weights are all 0 are left out.
        enable_pt2_compile: No effect: it makes the same numbers faster.
        should_clone_update_inputs: Whether inputs are copied, because the caller writes over them.
        use_cpu_offloaded_rec_metric_module: No effect: it makes the same numbers elsewhere.

    Raises:
        ValueError: A position is beyond the tasks.
    """

    rec_tasks: list[RecTaskInfo] = field(default_factory=list)
    rec_metrics: dict[RecMetricEnum, RecMetricDef] = field(default_factory=dict)
    throughput_metric: ThroughputDef | None = None
    rec_compute_mode: RecComputeMode = RecComputeMode.UNFUSED_TASKS_COMPUTATION
    fused_update_limit: int = 0
    state_metrics: list[StateMetricEnum] = field(default_factory=list)
    compute_interval_steps: int = 100
    min_compute_interval: float = 0.0
    max_compute_interval: float = float("inf")
    compute_on_all_ranks: bool = False
    should_validate_update: bool = False
    enable_pt2_compile: bool = False
    should_clone_update_inputs: bool = False
    use_cpu_offloaded_rec_metric_module: bool | None = None

    def __post_init__(self) -> None:
        for metric, definition in self.rec_metrics.items():
            beyond = [i for i in definition.rec_task_indices if i >= len(self.rec_tasks)]
            if beyond:
                raise ValueError(
                    f"rec_metrics[{metric}].rec_task_indices: got {beyond}, expected positions below "
                    f"{len(self.rec_tasks)}, the number of rec_tasks"
                )


DefaultTaskInfo = RecTaskInfo()
DefaultMetricsConfig = MetricsConfig(
    rec_tasks=[DefaultTaskInfo],
    rec_metrics={RecMetricEnum.NE: RecMetricDef(rec_tasks=[DefaultTaskInfo])},
    throughput_metric=ThroughputDef(),
)
EmptyMetricsConfig = MetricsConfig()


@dataclass
class BatchSizeStage:
    """A batch size, and the last batch that has it; None for the last stage."""

    batch_size: int = 0
    max_iters: int | None = 0


def validate_batch_size_stages(batch_size_stages: list[BatchSizeStage] | None) -> None:
    """Check that the last stage has no end.

    Raises:
        ValueError: It has one.
    """
    if batch_size_stages and batch_size_stages[-1].max_iters is not None:
        raise ValueError(
            f"batch_size_stages: got max_iters {batch_size_stages[-1].max_iters} of the last one, expected None"
        )
