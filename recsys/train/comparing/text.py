"""An evaluation as tables for a terminal, and as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from recsys.base.terminal import whole_table
from recsys.metrics.resampled import Comparison, Value
from recsys.train.comparing.evaluation import Evaluation, LabelEvaluation, Slice

#: Metrics by their headings, in the order of columns; ``{top}`` is how many rows of a group count.
HEADINGS = {
    "rmse": "RMSE",
    "mae": "MAE",
    "auc": "AUC",
    "ne": "NE",
    "calibration": "calibration",
    "loss": "loss",
    "gauc": "GAUC",
    "ndcg": "NDCG@{top}",
    "recall": "recall@{top}",
    "hit_rate": "hit rate@{top}",
    "mrr": "MRR@{top}",
    "coverage": "coverage@{top}",
}


def number(value: float | None) -> str:
    """Return a metric with four decimals."""
    return "-" if value is None else f"{value:.4f}"


def signed(value: float | None) -> str:
    """Return a difference with its sign."""
    return "-" if value is None else f"{value:+.4f}"


def interval(value: Value, *, is_difference: bool = False) -> str:
    """Return the ends of an interval; empty without one."""
    if value.low is None or value.high is None:
        return ""
    text = signed if is_difference else number
    return f"{text(value.low)} to {text(value.high)}"


def is_sure(value: Value) -> bool:
    """Return whether the interval of a difference lies on one side of 0."""
    return value.low is not None and value.high is not None and (value.low > 0 or value.high < 0)


def headings(metrics: Sequence[str], top: int) -> list[str]:
    """Return the headings of metrics."""
    return [HEADINGS[name].format(top=top) for name in metrics]


def metrics_of(found: LabelEvaluation) -> list[dict[str, Value]]:
    """Return the metrics of each model by name, in the order of ``HEADINGS``."""
    by_model = [dict(values) for values in found.comparison.metrics]
    for values, share in zip(by_model, found.coverage, strict=False):
        values["coverage"] = Value(share)
    return [{name: values[name] for name in HEADINGS if name in values} for values in by_model]


def print_evaluation(evaluation: Evaluation, top: int) -> None:
    """Print tables: the models' metrics; of several models, how they differ; slices."""
    console = Console()
    found_names = {name for found in evaluation.labels.values() for name in metrics_of(found)[0]}
    names = [name for name in HEADINGS if name in found_names]
    rows = [
        [model, label, f"{found.num_rows:,}", *(_cell(metrics, name) for name in names)]
        for label, found in evaluation.labels.items()
        for model, metrics in zip(evaluation.models, metrics_of(found), strict=True)
    ]
    console.print(whole_table("", ["model", "label", "rows", *headings(names, top)], rows, left={0, 1}))
    for label, found in evaluation.labels.items():
        _print_intervals(console, evaluation.models, label, found, top)
        if found.slices:
            _print_slices(console, evaluation.models, label, found)


def _cell(metrics: Mapping[str, Value], name: str) -> str:
    return number(metrics[name].value) if name in metrics else ""


def of_slices(found: LabelEvaluation) -> tuple[str, str]:
    """Return the two metrics of slices: the first one's differences are shown too."""
    return ("auc", "calibration") if "auc" in found.comparison.metrics[0] else ("rmse", "mae")


def _print_intervals(
    console: Console, models: Sequence[str], label: str, found: LabelEvaluation, top: int
) -> None:
    """Print the interval of each metric, and of each difference from the first model."""
    if not interval(found.comparison.metrics[0]["loss"]):
        return
    rows = []
    for name, heading in zip(
        found.comparison.metrics[0], headings(list(found.comparison.metrics[0]), top), strict=True
    ):
        cells = [heading, *(interval(metrics[name]) or "-" for metrics in found.comparison.metrics)]
        for difference in found.comparison.differences:
            value = difference[name]
            star = " *" if is_sure(value) else ""
            cells.append(f"{signed(value.value)} ({interval(value, is_difference=True) or '-'}){star}")
        rows.append(cells)
    columns = ["metric", *models, *(f"{model} - {models[0]}" for model in models[1:])]
    title = f"label {label}: 95 % intervals" + ("; * the difference is not 0" if len(models) > 1 else "")
    console.print(whole_table(title, columns, rows, left={0}))


def _print_slices(console: Console, models: Sequence[str], label: str, found: LabelEvaluation) -> None:
    """Print AUC and calibration, or errors, of each slice; of several models the differences, the surest ones first."""
    first, second = of_slices(found)
    rows = []
    for one in surest_first(found.slices, first):
        cells = [f"{one.column} = {one.value}", f"{one.num_rows:,}"]
        for metrics in one.comparison.metrics:
            cells += [number(metrics[first].value), number(metrics[second].value)]
        for difference in one.comparison.differences:
            value = difference[first]
            cells.append(signed(value.value) + (" *" if is_sure(value) else ""))
        rows.append(cells)
    columns = ["slice", "rows"]
    for model in models:
        prefix = f"{model} " if len(models) > 1 else ""
        columns += [f"{prefix}{HEADINGS[first]}", f"{prefix}{HEADINGS[second]}"]
    columns += [f"{HEADINGS[first]}, {model} - {models[0]}" for model in models[1:]]
    console.print(whole_table(f"label {label}: slices", columns, rows, left={0}))


def surest_first(slices: Sequence[Slice], metric: str) -> list[Slice]:
    """Return slices with sure differences of a metric before others, and large differences before small ones."""

    def order(one: Slice) -> tuple[bool, float]:
        values = [difference[metric] for difference in one.comparison.differences]
        largest = max((abs(value.value) for value in values if value.value is not None), default=0.0)
        return (not any(map(is_sure, values)), -largest)

    return sorted(slices, key=order)


def to_json(evaluation: Evaluation) -> dict[str, Any]:
    """Return plain data: each model's metrics by label; of several models, resampling or slices more, by its name."""
    data: dict[str, Any] = {
        model: {
            label: {"num_rows": found.num_rows, **{k: v.value for k, v in metrics_of(found)[i].items()}}
            for label, found in evaluation.labels.items()
        }
        for i, model in enumerate(evaluation.models)
    }
    compared = {
        label: _comparison(found.comparison, evaluation.models) for label, found in evaluation.labels.items()
    }
    if any(compared.values()):
        data["compared"] = compared
    slices = {
        label: [
            {
                "column": one.column,
                "value": one.value,
                "num_rows": one.num_rows,
                "metrics": {
                    model: {k: v.value for k, v in values.items()}
                    for model, values in zip(evaluation.models, one.comparison.metrics, strict=True)
                },
                **_comparison(one.comparison, evaluation.models),
            }
            for one in found.slices
        ]
        for label, found in evaluation.labels.items()
    }
    if any(slices.values()):
        data["slices"] = slices
    return data


def _comparison(found: Comparison, models: Sequence[str]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if interval(found.metrics[0]["loss"]):
        data["intervals"] = {
            model: {name: list(value[1:]) for name, value in values.items()}
            for model, values in zip(models, found.metrics, strict=True)
        }
    if found.differences:
        data["differences"] = {
            model: {name: value._asdict() for name, value in values.items()}
            for model, values in zip(models[1:], found.differences, strict=True)
        }
    return data
