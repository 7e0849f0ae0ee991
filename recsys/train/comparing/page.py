"""An evaluation as a page of HTML: one file, which loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recsys.base.files import replacing
from recsys.metrics.resampled import LEVEL, Value
from recsys.pages import style, templates
from recsys.train.comparing.evaluation import Bucket, Evaluation, LabelEvaluation
from recsys.train.comparing.text import (
    HEADINGS,
    headings,
    interval,
    is_sure,
    metrics_of,
    number,
    of_slices,
    signed,
    surest_first,
)

_FOLDER = Path(__file__).parent
# The left, right, bottom and top of the plot.
_LEFT, _RIGHT, _BOTTOM, _TOP = 46, 350, 260, 10
_NUM_COLORS = 4


def write_page(path: Path, evaluation: Evaluation, top: int) -> None:
    """Write the page, atomically.

    Raises:
        OSError: The file cannot be written.
    """
    page = templates(_FOLDER).get_template("page.html")
    text = page.render(
        title="Evaluation",
        style=style(_FOLDER),
        models=evaluation.models,
        notices=evaluation.notices,
        labels=[_label(name, found, evaluation.models, top) for name, found in evaluation.labels.items()],
    )
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _label(name: str, found: LabelEvaluation, models: Sequence[str], top: int) -> dict[str, Any]:
    groups = f", {found.num_groups:,} groups" if found.num_groups else ""
    intervals = (
        f"; ranges hold {LEVEL:.0%} of resamples" if interval(found.comparison.metrics[0]["loss"]) else ""
    )
    return {
        "name": name,
        "summary": f"{found.num_rows:,} rows{groups}{intervals}",
        "metrics": _metrics(found, models, top),
        "plots": [_plot(found.calibration)] if found.calibration else [],
        "slices": _slices(found, models) if found.slices else None,
        "slices_summary": "Sure differences first, then large ones." if len(models) > 1 else "",
    }


def _cell(heading: str, text: str, kind: str = "") -> dict[str, str]:
    return {"heading": heading, "text": text, "kind": kind}


def _difference(heading: str, value: Value | None) -> list[dict[str, str]]:
    if value is None:
        return [_cell(heading, ""), _cell("", "")]
    kind = "sure" if is_sure(value) else ""
    text = interval(value, is_difference=True)
    return [_cell(heading, signed(value.value), kind), _cell("", text, "range")]


def _metrics(found: LabelEvaluation, models: Sequence[str], top: int) -> dict[str, Any]:
    by_model = metrics_of(found)
    names = list(by_model[0])
    columns = ["metric"]
    for model in models:
        columns += [model, ""]
    for model in models[1:]:
        columns += [f"{model} − {models[0]}", ""]
    rows = []
    for name, heading in zip(names, headings(names, top), strict=True):
        cells = [_cell("metric", heading, "left")]
        for model, metrics in zip(models, by_model, strict=True):
            cells += [_cell(model, number(metrics[name].value)), _cell("", interval(metrics[name]), "range")]
        for model, difference in zip(models[1:], found.comparison.differences, strict=True):
            cells += _difference(f"{model} − {models[0]}", difference.get(name))
        rows.append(cells)
    return {"headings": columns, "rows": rows, "left": ()}


def _slices(found: LabelEvaluation, models: Sequence[str]) -> dict[str, Any]:
    first, second = of_slices(found)
    name = HEADINGS[first]
    columns = ["slice", "rows"]
    for model in models:
        columns += [f"{model}: {name}", f"{model}: {HEADINGS[second]}"]
    for model in models[1:]:
        columns += [f"{name}, {model} − {models[0]}", ""]
    rows = []
    for one in surest_first(found.slices, first):
        cells = [_cell("slice", f"{one.column} = {one.value}", "left"), _cell("rows", f"{one.num_rows:,}")]
        for model, metrics in zip(models, one.comparison.metrics, strict=True):
            cells.append(_cell(f"{model}: {name}", number(metrics[first].value)))
            cells.append(_cell(f"{model}: {HEADINGS[second]}", number(metrics[second].value)))
        for model, difference in zip(models[1:], one.comparison.differences, strict=True):
            cells += _difference(f"{name}, {model} − {models[0]}", difference[first])
        rows.append(cells)
    return {"headings": columns, "rows": rows, "left": ()}


def _plot(calibration: Sequence[Sequence[Bucket]]) -> dict[str, Any]:
    """Return the numbers of a plot of observed over predicted shares, on one scale for all models."""
    most = max((max(b.predicted, b.observed) for buckets in calibration for b in buckets), default=1.0)
    limit = next(
        limit for limit in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if most <= limit
    )

    def x(share: float) -> float:
        return round(_LEFT + share / limit * (_RIGHT - _LEFT), 1)

    def y(share: float) -> float:
        return round(_BOTTOM - share / limit * (_BOTTOM - _TOP), 1)

    lines = []
    for i, buckets in enumerate(calibration):
        dots = [
            {
                "x": x(bucket.predicted),
                "y": y(bucket.observed),
                "text": f"{bucket.num_rows:,} rows: {bucket.predicted:.4f} predicted, {bucket.observed:.4f} observed",
            }
            for bucket in buckets
        ]
        points = " ".join(f"{dot['x']},{dot['y']}" for dot in dots)
        lines.append({"points": points, "dots": dots, "index": i % _NUM_COLORS})
    ticks = [{"x": x(at), "y": y(at), "text": f"{at:g}"} for at in (0.0, limit / 2, limit)]
    return {"lines": lines, "ticks": ticks}
