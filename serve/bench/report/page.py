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

# Facts whose names in JSON are no plain words.
_FACTS = {
    "mode": "kind of load",
    "encrypted": "encrypted with TLS",
    "rows": "rows of a request",
    "candidates": "candidates of a request",
    "payload_bytes": "bytes of a request",
    "ids_per_bag": "IDs of a row in each sparse input",
    "zipf": "exponent of the IDs' distribution (0: all as likely)",
    "num_distinct": "different requests",
    "deadlines_ms": "deadlines of requests, ms",
    "num_in_flight": "requests at a time",
    "asked_per_s": "requests per second asked for",
    "p99_bound_ms": "bound of p99, ms",
    "num_connections": "connections",
    "num_processes": "sending processes or threads",
    "duration_s": "measured, s",
    "warm_up_s": "not measured before, s",
    "timeout_s": "longest wait for an answer, s",
    "seed": "seed of what is random",
    "num_dense_inputs": "dense inputs",
    "num_sparse_inputs": "sparse inputs",
    "context": "inputs that rankings give once",
    "digest": "digest of the artifact",
    "cpu": "processor",
    "num_cores": "cores",
    "load_average": "load of the last 1, 5 and 15 minutes",
}
_MODES = {
    "open": "open: at a rate",
    "closed": "closed: so many at a time",
    "find-rate": "search for the highest rate",
}

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
    sections.append(_Section(title="Settings, server and client", cells=_facts(result)))
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
        "Each point is one step of the search; a cross is a step that missed the bound. Rates near the highest good "
        "one were measured again."
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
        x=percentiles("share of requests answered within this time", total),
        y=_latency_axis([point.y for point in points]),
        lines=[Line(name="latency", color="a", points=points)],
        marks=marks,
    )
    at = "" if result.found is None else f" at {number(made.asked_per_s)}/s"
    text = (
        f"How many of the {total:,} answered requests{at} were answered within a time. The lower axis gives the "
        "slowest ones room: from 90 % to 99 % is as far as from 0 % to 90 %."
    )
    if made.lag_ms is not None:
        text += " Times count from when a request was due, so that waiting to be sent counts too."
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
    text = f"What was answered in each interval of {width_s:g} s."
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
    data["settings"]["mode"] = _MODES.get(result.settings.mode, result.settings.mode)
    for part, name in parts:
        facts = [(key, value) for key, value in data[part].items() if value not in (None, "", [])]
        names = [name, *[""] * len(facts)]
        rows += [
            [names[i], _FACTS.get(key, key.replace("_", " ")), _fact(value)]
            for i, (key, value) in enumerate(facts)
        ]
    return Cells(("of", "what", "value"), rows, left=(0, 1, 2))


def _fact(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(one) for one in value)
    if isinstance(value, float):
        return number(value)
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
