"""The report of a run as one HTML page without scripts, other files or network.

``page.html`` is its template, ``page.css`` its part of the style sheet. Texts of the server are escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from recsys.pages import style
from serve.bench.load.figures import Figures, Verdict
from serve.bench.load.latencies import QUANTILES
from serve.bench.report.charts import (
    TEMPLATES,
    Axis,
    Chart,
    Line,
    Mark,
    Point,
    linear,
    logarithmic,
    percentiles,
)
from serve.bench.report.terminal import (
    Cells,
    about,
    by_rate,
    errors_table,
    headline,
    latencies_table,
    number,
    server_metrics_table,
    steps_table,
)
from serve.bench.run import Result

# Ratio of the largest to the smallest value from which an axis is logarithmic.
_LOG_RATIO = 12.0


@dataclass(frozen=True, kw_only=True)
class _Section:
    """A section of the page: a heading, and optionally a text, charts and a table."""

    title: str
    text: str = ""
    charts: Sequence[Chart] = ()
    cells: Cells | None = None


def page(result: Result) -> str:
    """Return the report as HTML."""
    made = result.measurement
    sections = [_search(result)] if result.found is not None else []
    if made is not None:
        if made.num_answered:
            sections += [_distribution(result, made), *_over_time(made)]
        sections.append(
            _Section(
                title="Latency in ms",
                text="p99 is the time within which 99 of 100 requests were answered. Percentiles are at most 0.4 % "
                "off; mean and maximum are exact.",
                cells=latencies_table(made),
            )
        )
        if made.errors:
            sections.append(_Section(title="Failed requests", cells=errors_table(made)))
    if result.server_metrics is not None:
        cells = server_metrics_table(result.server_metrics)
        sections.append(_Section(title="What the server counted", cells=cells))
    sections.append(_Section(title="What was measured with what", cells=_facts(result)))
    return TEMPLATES.get_template("page.html").render(
        title=f"Load on {result.server['model'] or result.settings.target.address}",
        style=style(Path(__file__).parent),
        headline=headline(result),
        about=about(result),
        started_at=result.started_at,
        warnings=result.warnings(),
        tiles=_tiles(result),
        sections=sections,
    )


def _tiles(result: Result) -> list[tuple[str, str]]:
    made = result.measurement
    if made is None:
        return []
    return [
        (number(made.requests_per_s), "requests per second"),
        (number(made.rows_per_s), "rows per second"),
        (f"{number(made.latency_ms['p50'])} ms", "p50: half of the answers took less"),
        (f"{number(made.p99_ms)} ms", "p99: 1 of 100 answers took longer"),
        (f"{number(made.latency_ms['p99.9'])} ms", "p99.9: 1 of 1,000 answers took longer"),
        (f"{made.num_failed:,}", "failed requests"),
    ]


def _search(result: Result) -> _Section:
    """Return the latencies by rate, step by step."""
    assert result.found is not None
    shown = [tried for tried in by_rate(result) if tried.figures.num_answered]
    lines = []
    for name, color in (("p99", "b"), ("p50", "a")):
        points = [
            Point(
                x=tried.figures.asked_per_s or 0.0,
                y=tried.figures.latency_ms[name] or 0.0,
                title=f"{number(tried.figures.asked_per_s)}/s: {name} {number(tried.figures.latency_ms[name])} ms, "
                f"{tried.verdict.text}",
                is_bad=name == "p99" and tried.verdict is not Verdict.OK,
            )
            for tried in shown
        ]
        lines.append(Line(name=name, color=color, points=points, through=_medians(points)))
    bound_ms = result.settings.search.p99_ms or 0.0
    marks = [Mark(text=f"bound: p99 {bound_ms:g} ms", y=bound_ms)]
    if result.found.rate_per_s is not None:
        marks.append(Mark(text=f"{number(result.found.rate_per_s)}/s", x=result.found.rate_per_s))
    charts = []
    if shown:
        values = [bound_ms, *(point.y for line in lines for point in line.points)]
        most = max(tried.figures.asked_per_s or 0.0 for tried in shown)
        chart = Chart(
            title="latency by rate",
            x=linear("requests per second asked for", most, most_ticks=8),
            y=_latency_axis(values),
            lines=lines,
            marks=marks,
            height=360,
        )
        charts.append(chart)
    text = (
        "Each point is one step of the search; a cross failed it. Rates near the border were measured again."
    )
    return _Section(title="Latency by rate", text=text, charts=charts, cells=steps_table(result))


def _medians(points: Sequence[Point]) -> list[Point]:
    """Return one point for each x."""
    by_x: dict[float, list[float]] = {}
    for point in points:
        by_x.setdefault(point.x, []).append(point.y)
    return [Point(x=x, y=median(values)) for x, values in by_x.items()]


def _distribution(result: Result, made: Figures) -> _Section:
    """Return the latency by percentile."""
    total = sum(count for _, count in made.histogram)
    points = [Point(x=0.0, y=made.histogram[0][0])]
    seen = 0
    for upper_ms, count in made.histogram:
        seen += count
        points.append(Point(x=seen / total, y=min(upper_ms, made.latency_ms["max"] or upper_ms)))
    marked = [
        Point(x=share, y=value, title=f"{name}: {number(value)} ms")
        for name, share in QUANTILES.items()
        if (value := made.latency_ms[name]) is not None
    ]
    points = sorted([*points, *marked], key=lambda point: (point.x, point.y))
    expected_ms = result.settings.result.expect_p99_ms
    marks = [] if expected_ms is None else [Mark(text=f"expected: p99 {expected_ms:g} ms", y=expected_ms)]
    chart = Chart(
        title="latency by percentile",
        x=percentiles("share of the requests that were answered at least as fast", total),
        y=_latency_axis([point.y for point in points]),
        lines=[Line(name="latency", color="a", points=points)],
        marks=marks,
    )
    at = "" if result.found is None else f" at {number(made.asked_per_s)}/s"
    text = f"{total:,} answered requests{at}. Each further nine has the same width."
    if made.lag_ms is not None:
        text += " Counted from when each request was due."
    return _Section(title="Latency distribution", text=text, charts=[chart])


def _over_time(made: Figures) -> list[_Section]:
    """Return throughput and latency by interval; nothing if there are few intervals."""
    if len(made.series) < 3:
        return []
    width_s = made.series[0]["width_s"]

    def line(key: str, name: str, color: str, unit: str) -> Line:
        points = [
            Point(
                x=p["at_s"] + p["width_s"] / 2,
                y=p[key],
                title=f"{p['at_s']} s: {name} {number(p[key])}{unit}",
            )
            for p in made.series
            if p[key] is not None
        ]
        return Line(name=name, color=color, points=points, is_filled=key == "requests_per_s")

    rates = [line("requests_per_s", "answered", "c", "/s")]
    if made.num_failed:
        rates.append(line("failed_per_s", "failed", "b", "/s"))
    latencies = [line("p99_ms", "p99", "b", " ms"), line("p50_ms", "p50", "a", " ms")]
    seconds = linear("seconds", made.series[-1]["at_s"] + made.series[-1]["width_s"], most_ticks=10)
    asked = [] if made.asked_per_s is None else [Mark(text="asked for", y=made.asked_per_s)]
    most = max([made.asked_per_s or 0.0, *(point.y for one in rates for point in one.points)])
    charts = [
        Chart(
            title="requests per second",
            x=seconds,
            y=linear("requests/s", most, most_ticks=4),
            lines=rates,
            marks=asked,
            height=210,
        )
    ]
    values = [point.y for one in latencies for point in one.points]
    if values:
        charts.append(
            Chart(title="latency over time", x=seconds, y=_latency_axis(values), lines=latencies, height=230)
        )
    text = f"By the time at which answers came, in intervals of {width_s:g} s."
    return [_Section(title="Over time", text=text, charts=charts)]


def _latency_axis(values_ms: Sequence[float]) -> Axis:
    least, most = max(min(values_ms), 1e-3), max(values_ms)
    if most / least > _LOG_RATIO:
        return logarithmic("ms", least, most)
    return linear("ms", most, most_ticks=5)


def _facts(result: Result) -> Cells:
    data = result.to_json()
    parts = (
        ("settings", "settings"),
        ("server", "server"),
        ("machine", "client's machine"),
        ("tool", "client"),
    )
    rows = []
    for part, name in parts:
        facts = [(key, value) for key, value in data[part].items() if value not in (None, "", [])]
        names = [name, *[""] * len(facts)]
        rows += [[names[i], key.replace("_", " "), _fact(value)] for i, (key, value) in enumerate(facts)]
    return Cells(("", "what", "value"), rows, left=(0, 1, 2))


def _fact(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(one) for one in value)
    if isinstance(value, float):
        return number(value)
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
