"""Prometheus families of quality and drift; docs/operate/metrics.md describes each of them."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from serve.quality.drift import InputWatch
from serve.quality.monitor import LabelledQuality

_SERIES = ("model", "version", "arm", "label", "window")
# By the attribute of BinnedMetrics.
_GAUGES = {
    "num_rows": ("recsys_quality_labels", "Labels of the window"),
    "auc": ("recsys_quality_auc", "Area under the ROC curve of the window's labels"),
    "auc_error": ("recsys_quality_auc_error", "By how much that may differ from the exact one, at most"),
    "ne": ("recsys_quality_ne", "Normalized entropy of the window's labels"),
    "calibration": ("recsys_quality_calibration", "Mean score divided by mean label"),
    "mean_label": ("recsys_quality_ctr", "Mean label"),
}


class QualityCollector(Collector):
    """A Prometheus collector of quality by labels, and of drift.

    Args:
        quality: what it reads on each collection.
        inputs: the same, of drift.
    """

    def __init__(self, quality: LabelledQuality, inputs: InputWatch) -> None:
        self._quality, self._inputs = quality, inputs

    def collect(self) -> Iterable[Metric]:
        """Yield every family with its current samples."""
        yield from self._counts()
        found = self._quality.metrics()
        for attribute, (name, text) in _GAUGES.items():
            family = GaugeMetricFamily(name, text, labels=_SERIES)
            for series, by_window in found.items():
                for window, metrics in by_window.items():
                    value = getattr(metrics, attribute)
                    if value is not None:
                        family.add_metric((*series, window), value)
            yield family
        yield from _drift(self._inputs)

    def _counts(self) -> Iterable[Metric]:
        labels = CounterMetricFamily(
            "recsys_feedback_labels", "Labels, by what became of them", labels=("source", "result")
        )
        for source, results in self._quality.results().items():
            for result, count in results.items():
                labels.add_metric((source, result), count)
        answers = CounterMetricFamily(
            "recsys_feedback_answers", "Answers with a request ID, by what became of them", labels=("result",)
        )
        for result, count in self._quality.answers().items():
            answers.add_metric((result,), count)
        held = GaugeMetricFamily("recsys_feedback_held_bytes", "Memory of answers that are kept for labels")
        held.add_metric((), self._quality.num_bytes)
        yield from (labels, answers, held)


def _drift(watch: InputWatch) -> Iterable[Metric]:
    requests = CounterMetricFamily(
        "recsys_drift_requests", "Requests sampled for drift, by what became of them", labels=("result",)
    )
    for result, count in watch.counts().items():
        requests.add_metric((result,), count)
    of, window_of = ("model", "version", "input"), ("window",)
    rows = GaugeMetricFamily(
        "recsys_drift_rows", "Rows of the window that were compared", labels=("model", "version", "window")
    )
    missing = GaugeMetricFamily(
        "recsys_drift_missing_ratio",
        "Share of rows without a number, or with an empty list",
        labels=(*of, *window_of),
    )
    unknown = GaugeMetricFamily(
        "recsys_drift_unknown_ratio", "Share of IDs without a row of their own", labels=(*of, *window_of)
    )
    index = GaugeMetricFamily(
        "recsys_drift_psi",
        "Population stability index against the training data",
        labels=(*of, "of", *window_of),
    )
    for key, by_window in watch.drift().items():
        for window, drift in by_window.items():
            rows.add_metric((*key, window), drift.num_rows)
            for one in drift.inputs:
                missing.add_metric((*key, one.name, window), one.missing)
                if one.unknown is not None:
                    unknown.add_metric((*key, one.name, window), one.unknown)
                for what, value in one.indices.items():
                    index.add_metric((*key, one.name, what, window), value)
    yield from (requests, rows, missing, unknown, index)
