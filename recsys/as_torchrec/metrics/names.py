"""The keys of metrics in reports: ``namespace-task|prefix_name``, such as ``ne-DefaultTask|window_ne``."""

from enum import Enum


class StrValueMixin:
    """Makes a member's text its value."""

    value: str

    def __str__(self) -> str:
        return self.value


class MetricNameBase(StrValueMixin, Enum):
    """Names of metrics; a metric of your own brings its own."""


class MetricName(MetricNameBase):
    """Names of the metrics here."""

    DEFAULT = ""
    NE = "ne"
    LOG_LOSS = "logloss"
    THROUGHPUT = "throughput"
    TOTAL_EXAMPLES = "total_examples"
    ATTEMPT_EXAMPLES = "attempt_examples"
    BATCH_SIZE = "batch_size"
    CTR = "ctr"
    CALIBRATION = "calibration"
    MSE = "mse"
    RMSE = "rmse"
    R_SQUARED = "r_squared"
    AUC = "auc"


class MetricNamespaceBase(StrValueMixin, Enum):
    """Namespaces of metrics; a metric of your own brings its own."""


class MetricNamespace(MetricNamespaceBase):
    """Namespaces of the metrics here."""

    DEFAULT = ""
    NE = "ne"
    THROUGHPUT = "throughput"
    CTR = "ctr"
    CALIBRATION = "calibration"
    MSE = "mse"
    AUC = "auc"
    OPTIMIZERS = "optimizers"
    MODEL_CONFIGURATOR = "model_configurator"


class MetricPrefix(StrValueMixin, Enum):
    """What a metric is of: all examples, the latest ones, or those since the process began."""

    DEFAULT = ""
    LIFETIME = "lifetime_"
    WINDOW = "window_"
    ATTEMPT = "attempt_"


def task_wildcard_metrics_pattern(
    namespace: MetricNamespaceBase,
    metric_name: MetricNameBase,
    metric_prefix: MetricPrefix = MetricPrefix.DEFAULT,
) -> str:
    """Return a regular expression of the metric's keys for all tasks."""
    return rf"{namespace}-.+\|{metric_prefix}{metric_name}"


def compose_metric_namespace(namespace: MetricNamespaceBase, task_name: str) -> str:
    """Return the first part of a key."""
    return f"{namespace}-{task_name}"


def compose_customized_metric_key(namespace: str, metric_name: str, description: str | None = None) -> str:
    """Return the key of any first part and name."""
    return f"{namespace}|{metric_name}{description or ''}"


def compose_metric_key(
    namespace: MetricNamespaceBase,
    task_name: str,
    metric_name: MetricNameBase,
    metric_prefix: MetricPrefix = MetricPrefix.DEFAULT,
    description: str | None = None,
) -> str:
    """Return the key of a metric."""
    first = compose_metric_namespace(namespace, task_name)
    return compose_customized_metric_key(first, f"{metric_prefix}{metric_name}", description)
