"""The runs of a sweep as a page of HTML: one file, which loads nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recsys.base.files import replacing
from recsys.metrics.ranked import TOP
from recsys.pages import style, templates
from recsys.train.comparing.text import headings, number
from recsys.train.sweeping.runs import SweepRun
from recsys.train.sweeping.text import cells, columns, value_text

_FOLDER = Path(__file__).parent
# The left, right, bottom and top of a plot.
_LEFT, _RIGHT, _BOTTOM, _TOP = 56, 346, 200, 18
# The scale is logarithmic if the largest number is at least this many times the smallest.
_LOG_FROM = 8


def write_page(path: Path, runs: Sequence[SweepRun], metric: str, num_runs: int) -> None:
    """Write the page, atomically.

    Args:
        path: The file.
        runs: The runs, the best first; one at least.
        metric: What they are compared by.
        num_runs: The number of runs of the whole sweep.

    Raises:
        OSError: The file cannot be written.
    """
    page = templates(_FOLDER).get_template("page.html")
    keys, names, titles = columns(runs, metric)
    spaced = [key.replace("_", " ") for key in keys]  # so that their lines break
    heads = ["run", *spaced, *titles, "epoch", "seconds"]
    rows = [
        [
            {"heading": head, "text": text, "kind": _kind(head, spaced, titles, is_best=run is runs[0])}
            for head, text in zip(heads, cells(run, keys, names), strict=True)
        ]
        for run in runs
        if not run.error
    ]
    failed = [run for run in runs if run.error]
    measured = [run for run in runs if run.metric is not None]
    [title] = headings([metric], TOP)
    text = page.render(
        title="Sweep",
        style=style(_FOLDER),
        summary=f"{len(runs)} of {num_runs} runs" if len(runs) < num_runs else f"{num_runs} runs",
        tiles=_tiles(runs, measured, failed, title),
        table={"headings": heads, "rows": rows, "left": spaced},
        failed=[{"run": run.number, "values": _values(run.values), "error": run.error} for run in failed],
        plots=[_plot(key, measured, title) for key in keys] if measured else [],
        metric=title,
    )
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _kind(head: str, keys: Sequence[str], titles: Sequence[str], *, is_best: bool) -> str:
    kinds = ["left"] if head in keys else []
    if is_best and head == titles[0]:
        kinds.append("best")
    return " ".join(kinds)


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value_text(value)}" for key, value in values.items())


def _tiles(
    runs: Sequence[SweepRun], measured: Sequence[SweepRun], failed: Sequence[SweepRun], title: str
) -> list[tuple[str, str]]:
    tiles = []
    if measured:
        tiles.append((number(measured[0].metric), f"{title}, run {measured[0].number}"))
        if len(measured) > 1:
            tiles.append((number(measured[len(measured) // 2].metric), f"{title}, median run"))
    tiles.append((f"{sum(run.seconds for run in runs):,.0f} s", "training"))
    if failed:
        tiles.append((str(len(failed)), "failed"))
    return tiles


def _plot(key: str, runs: Sequence[SweepRun], title: str) -> dict[str, Any]:
    """Return the numbers of a plot of the metric over an option's values; runs are the best first."""
    values = [run.values[key] for run in runs]
    places, ticks = _places(values)
    metrics = [run.metric for run in runs if run.metric is not None]
    low, high = min(metrics), max(metrics)
    if low == high:
        low, high = low - 0.5 * abs(low or 1), high + 0.5 * abs(high or 1)

    def y(metric: float) -> float:
        return round(_BOTTOM - 6 - (metric - low) / (high - low) * (_BOTTOM - _TOP - 12), 1)

    dots = [
        {
            "x": _x(place),
            "y": y(metric),
            "kind": "best" if i == 0 else "",
            "text": f"run {run.number}: {key} = {value_text(run.values[key])}, {title} {metric:.4f}",
        }
        for i, (run, place, metric) in enumerate(zip(runs, places, metrics, strict=True))
    ]
    return {
        "name": key,
        "dots": dots[::-1],  # the best is drawn last
        "x_ticks": [{"x": _x(place), "text": text} for place, text in ticks],
        "y_ticks": [{"y": y(at), "text": f"{at:.4f}"} for at in (low, (low + high) / 2, high)],
    }


def _x(place: float) -> float:
    return round(_LEFT + 14 + place * (_RIGHT - _LEFT - 28), 1)


def _places(values: Sequence[Any]) -> tuple[list[float], list[tuple[float, str]]]:
    """Return each value's place from 0 to 1, and the places and texts of ticks."""
    different = list(dict.fromkeys(map(value_text, values)))
    is_number = all(type(value) in (int, float) for value in values)
    if not is_number or len(different) == 1:
        texts = sorted(different)
        at = {text: i / (len(texts) - 1) if len(texts) > 1 else 0.5 for i, text in enumerate(texts)}
        shown = texts if len(texts) <= 6 else []
        return [at[value_text(value)] for value in values], [(at[text], _short(text)) for text in shown]
    low, high = min(values), max(values)
    is_log = low > 0 and high / low >= _LOG_FROM

    def place(value: float) -> float:
        if is_log:
            return math.log(value / low) / math.log(high / low)
        return float((value - low) / (high - low))

    middle = math.sqrt(low * high) if is_log else (low + high) / 2
    return [place(value) for value in values], [(place(at), f"{at:.3g}") for at in (low, middle, high)]


def _short(text: str) -> str:
    return text if len(text) <= 12 else text[:11] + "…"
