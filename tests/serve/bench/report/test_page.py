"""The report as HTML, read by a strict parser; and the axes of its charts."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from serve.bench.cli import COMMAND
from serve.bench.load.figures import figures, verdict
from serve.bench.load.measured import Failure, Measured, Recorder
from serve.bench.load.plan import Step
from serve.bench.load.requests import Prepared
from serve.bench.report.charts import Chart, Line, Mark, Point, linear, logarithmic, percentiles
from serve.bench.report.page import page
from serve.bench.report.terminal import headline, print_result
from serve.bench.run import Result, Tried
from serve.bench.search import Found
from serve.bench.settings import read_settings
from tests.support.serve.strict_page import parsed_page

_EVIL = '<script>alert("x")</script>&'


def _measured(rate_per_s: float, num_failed: int = 0) -> tuple[Measured, Step]:
    step = Step(duration_s=5.0, rate_per_s=rate_per_s)
    recorder = Recorder(0.0, 5.0, by_due=True)
    rng = np.random.default_rng(int(rate_per_s))
    for i, latency_s in enumerate(rng.lognormal(-5, 1, int(5 * rate_per_s)).tolist()):
        due_s = i / rate_per_s
        failure = Failure("INVALID_ARGUMENT", _EVIL) if i < num_failed else None
        request = Prepared(data=b"", num_rows=2, kind="high" if i % 2 else "low")
        recorder.done(request, due_s, due_s + 1e-4, due_s + latency_s, failure)
    recorder.measured.cpu_shares = [0.5]
    return recorder.measured, step


def _result(*arguments: str, rates: tuple[float, ...] = (100.0,), num_failed: int = 0) -> Result:
    settings = read_settings(COMMAND.parse(["127.0.0.1:9", *arguments]))
    all_made = [figures(*_measured(rate, num_failed)) for rate in rates]
    searched = settings.search.p99_ms is not None
    steps = [Tried(verdict=verdict(made, settings.search.p99_ms or 0.0), figures=made) for made in all_made]
    found = Found(rate_per_s=rates[0], failing_per_s=rates[-1], limit=steps[-1].verdict, is_settled=True)
    return Result(
        settings=settings,
        server={"model": _EVIL, "version": "7", "target": "cpu", "context": []},
        started_at="2026-01-01T00:00:00+00:00",
        tool={"python": "3"},
        machine={"cpu": "a & b"},
        measurement=all_made[0],
        found=found if searched else None,
        steps=steps if searched else [],
        server_metrics={"mean_batch_rows": 3.5, "mean_queue_ms": None},
        num_distinct=10,
    )


@pytest.mark.parametrize(
    "result",
    [
        _result("--rate", "100", "--expect-p99-ms", "50"),
        _result("--rate", "100", num_failed=20),
        _result("--rate", "100", num_failed=500),
        _result("--find-rate", "--p99-ms", "50", rates=(50.0, 100.0, 200.0)),
        _result("--find-rate", "--p99-ms", "0.01", rates=(50.0,)),
    ],
    ids=["open", "some-failed", "all-failed", "search", "search-without-success"],
)
def test_the_page_is_whole_and_has_nothing_from_elsewhere(result: Result) -> None:
    text = page(result)
    made = parsed_page(text)
    assert "script" not in made.tags
    assert made.addresses == []
    assert "http:" not in text
    assert "https:" not in text
    assert "url(" not in text
    assert "@import" not in text
    # What the server says stands there as text.
    assert any(_EVIL in one for one in made.texts)
    for chart in text.split("<svg")[1:]:
        ET.fromstring("<svg" + chart.split("</svg>")[0] + "</svg>")


def test_a_run_shows_distribution_time_and_kinds() -> None:
    made = parsed_page(page(_result("--rate", "100", num_failed=3)))
    text = " ".join(made.texts)
    for heading in ("Latency distribution", "Over time", "Latency in ms", "Failed requests", "99%", "high"):
        assert heading in text
    assert made.tags.count("svg") == 2 * 3


def test_a_search_shows_its_steps_and_marks_those_that_failed() -> None:
    result = _result("--find-rate", "--p99-ms", "0.01", rates=(50.0, 100.0))
    text = page(result)
    # Once in each of the two sizes.
    assert text.count('class="cross"') == 2 * len(result.steps)
    assert "bound: p99 0.01 ms" in text
    assert headline(result).startswith("50.0 requests/s")


def test_lateness_spoils_a_run_and_not_the_rate_that_a_search_found() -> None:
    for arguments, is_spoilt in ((["--rate", "100"], True), (["--find-rate", "--p99-ms", "50"], False)):
        result = _result(*arguments)
        assert result.measurement is not None
        late = replace(result.measurement, late_share=0.5, is_valid=False)
        result = replace(result, measurement=late)
        assert any(text.startswith("not valid") for text in result.warnings()) is is_spoilt
        assert ("not valid" in page(result)) is is_spoilt
        assert any("not valid" in text for text in result.missed()) is is_spoilt


def test_the_terminal_gets_the_same_and_no_markup_of_others() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    print_result(_result("--rate", "100", num_failed=3), console)
    text = console.export_text()
    assert "INVALID_ARGUMENT" in text
    assert "<script>" in text
    assert "p99.9" in text


@pytest.mark.parametrize("most", [0.0, 0.0007, 1.0, 9.99, 1234.5])
def test_a_linear_axis_has_round_marks_and_holds_its_values(most: float) -> None:
    axis = linear("x", most)
    assert 2 <= len(axis.ticks) <= 8
    assert axis.ticks[0] == 0
    assert axis.ticks[-1] >= most
    assert axis.place(0.0) == 0
    assert axis.place(axis.ticks[-1]) == pytest.approx(1)
    assert 0 <= axis.place(most) <= 1 + 1e-9


@pytest.mark.parametrize(
    ("least", "most"), [(0.3, 0.4), (1.0, 1000.0), (0.02, 71_000.0), (5.0, 5.0), (1e-9, 3.0)]
)
def test_a_logarithmic_axis_holds_its_values(least: float, most: float) -> None:
    axis = logarithmic("x", least, most)
    assert 2 <= len(axis.ticks) <= 12
    assert list(axis.ticks) == sorted(axis.ticks)
    for value in (least, most):
        assert -1e-9 <= axis.place(value) <= 1 + 1e-9
    assert axis.place(most) >= axis.place(least)


def test_each_nine_takes_as_much_room() -> None:
    axis = percentiles("x", 100_000)
    places = [axis.place(share) for share in (0.0, 0.9, 0.99, 0.999)]
    assert np.diff(places) == pytest.approx([places[1]] * 3)
    assert axis.place(1.0) == 1.0
    assert [axis.text(tick) for tick in axis.ticks[:4]] == ["0%", "50%", "90%", "99%"]


def test_a_chart_names_its_lines_without_overlap() -> None:
    lines = [
        Line(name=name, color="a", points=[Point(x=0, y=1.0), Point(x=1, y=value, title=name, is_bad=True)])
        for name, value in (("p50", 1.0), ("p99", 1.01), ("p<b>", 1.02))
    ]
    text = Chart(
        title="t", x=linear("x", 1), y=linear("y", 2), lines=lines, marks=[Mark(text="m", x=0.5)]
    ).svg()
    root = ET.fromstring(text[: text.index("</svg>") + len("</svg>")])
    places = [float(e.attrib["y"]) for e in root.iter("text") if e.attrib.get("class", "").startswith("name")]
    assert len(places) == 3
    assert min(np.diff(sorted(places))) >= 14
    assert "p&lt;b&gt;" in text
