"""The report of a run as one HTML page: no script, no other files, no network; texts of the server as text only."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import median
from typing import Any

from serve.bench import tables
from serve.bench.charts import Axis, Chart, Line, Mark, Point, linear, logarithmic, percentiles
from serve.bench.figures import Figures, Verdict
from serve.bench.latencies import QUANTILES
from serve.bench.page_style import STYLE
from serve.bench.report import about, headline
from serve.bench.run import Result
from serve.bench.tables import Cells, number

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
# Where the largest is so many times the smallest, a linear axis would show the largest alone.
_LOG_RATIO = 12.0


def page(result: Result) -> str:
    """The page."""
    made = result.measurement
    title = f"Load on {result.server['model']}"
    sections = [_search(result)] if result.found is not None else []
    if made is not None:
        if made.num_answered:
            sections += [_distribution(result, made), _over_time(made)]
        sections += [_latencies(made), _errors(made)]
    sections += [_server_metrics(result), _facts(result)]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{escape(headline(result))}</h1>
<p>{"<br>".join(escape(line) for line in about(result))}<br>started at {escape(result.started_at)}</p>
{"".join(f'<section class="warning">{escape(text)}</section>' for text in result.warnings())}
{_tiles(result)}
{"".join(sections)}
</main>
</body>
</html>
"""


def _tiles(result: Result) -> str:
    made = result.measurement
    if made is None:
        return ""
    tiles = [
        (number(made.requests_per_s), "requests per second"),
        (number(made.rows_per_s), "rows per second"),
        (f"{number(made.latency_ms['p50'])} ms", "p50"),
        (f"{number(made.p99_ms)} ms", "p99"),
        (f"{number(made.latency_ms['p99.9'])} ms", "p99.9"),
        (f"{made.num_failed:,}", "failed requests"),
    ]
    inner = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for value, name in tiles
    )
    return f'<div class="tiles">{inner}</div>'


def _search(result: Result) -> str:
    """Rate against latency, step by step."""
    assert result.found is not None
    shown = [tried for tried in tables.by_rate(result) if tried.figures.num_answered]
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
    bound_ms = result.settings.p99_ms or 0.0
    marks = [Mark(text=f"bound: p99 {bound_ms:g} ms", y=bound_ms)]
    if result.found.rate_per_s is not None:
        marks.append(Mark(text=f"{number(result.found.rate_per_s)}/s", x=result.found.rate_per_s))
    chart = ""
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
        ).svg()
    text = (
        "Each point is one step of the search; a cross failed it. Rates near the border were measured again."
    )
    return _section("Latency by rate", text, chart + _table(tables.steps(result)))


def _medians(points: Sequence[Point]) -> list[Point]:
    """One point for each x."""
    by_x: dict[float, list[float]] = {}
    for point in points:
        by_x.setdefault(point.x, []).append(point.y)
    return [Point(x=x, y=median(values)) for x, values in by_x.items()]


def _distribution(result: Result, made: Figures) -> str:
    """Latency by percentile: what every so manieth request had to wait."""
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
    expected_ms = result.settings.expect_p99_ms
    marks = [] if expected_ms is None else [Mark(text=f"expected: p99 {expected_ms:g} ms", y=expected_ms)]
    chart = Chart(
        title="latency by percentile",
        x=percentiles("share of the requests that were answered at least as fast", total),
        y=_latency_axis([point.y for point in points]),
        lines=[Line(name="latency", color="a", points=points)],
        marks=marks,
    )
    at = "" if result.found is None else f" at {number(made.asked_per_s)}/s"
    text = f"{total:,} answered requests{at}. Each further nine takes as much room."
    if made.lag_ms is not None:
        text += " Counted from when each request should have been sent."
    return _section("Latency distribution", text, chart.svg())


def _over_time(made: Figures) -> str:
    """Throughput and latency, interval by interval."""
    if len(made.series) < 3:
        return ""
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
    return _section("Over time", text, "".join(chart.svg() for chart in charts))


def _latency_axis(values_ms: Sequence[float]) -> Axis:
    least, most = max(min(values_ms), 1e-3), max(values_ms)
    if most / least > _LOG_RATIO:
        return logarithmic("ms", least, most)
    return linear("ms", most, most_ticks=5)


def _latencies(made: Figures) -> str:
    text = "Percentiles are at most 0.4 % off; mean and maximum are exact."
    return _section("Latency in ms", text, _table(tables.latencies(made)))


def _errors(made: Figures) -> str:
    return _section("Failed requests", "", _table(tables.errors(made))) if made.errors else ""


def _server_metrics(result: Result) -> str:
    if result.server_metrics is None:
        return ""
    return _section("What the server counted", "", _table(tables.server_metrics(result.server_metrics)))


def _facts(result: Result) -> str:
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
    return _section(
        "What was measured with what", "", _table(Cells(("", "what", "value"), rows, left=(0, 1, 2)))
    )


def _fact(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(one) for one in value)
    if isinstance(value, float):
        return number(value)
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _section(title: str, text: str, content: str) -> str:
    paragraph = f"<p>{escape(text)}</p>" if text else ""
    return f"<section><h2>{escape(title)}</h2>{paragraph}{content}</section>\n"


def _table(cells: Cells) -> str:
    def row(texts: Sequence[str], tag: str) -> str:
        inner = "".join(
            f'<{tag} class="left">{escape(text)}</{tag}>'
            if i in cells.left
            else f"<{tag}>{escape(text)}</{tag}>"
            for i, text in enumerate(texts)
        )
        return f"<tr>{inner}</tr>"

    body = "".join(row(texts, "td") for texts in cells.rows)
    return f'<div class="scroll"><table><thead>{row(cells.headings, "th")}</thead><tbody>{body}</tbody></table></div>'
