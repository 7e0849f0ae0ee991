"""The tables of a result, as text: for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from serve.bench.figures import Figures
from serve.bench.latencies import QUANTILES
from serve.bench.run import Result, Tried

_COLUMNS = (*QUANTILES, "max", "mean")


@dataclass(frozen=True)
class Cells:
    """A table.

    Attributes:
        headings: of its columns.
        rows: as many cells each.
        left: the columns that are flush left; all others are numbers.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[int]


def latencies(made: Figures) -> Cells:
    """All requests, and each kind of them."""
    is_open = made.lag_ms is not None
    rows = [["since due" if is_open else "all", f"{made.num_answered:,}", *_cells(made.latency_ms)]]
    if made.service_ms is not None and made.lag_ms is not None:
        rows.append(["since sent", "", *_cells(made.service_ms)])
        rows.append(["sent late by", "", *_cells(made.lag_ms)])
    rows += [
        [name, f"{kind['num_answered']:,}", *_cells(kind["latency_ms"])] for name, kind in made.kinds.items()
    ]
    return Cells(("", "answered", *_COLUMNS), rows, left=(0,))


def by_rate(result: Result) -> list[Tried]:
    """The steps of a search, the slowest first."""
    return sorted(result.steps, key=lambda tried: tried.figures.asked_per_s or 0.0)


def steps(result: Result) -> Cells:
    """What a search tried."""
    rows = [
        [
            number(tried.figures.asked_per_s),
            number(tried.figures.requests_per_s),
            number(tried.figures.latency_ms["p50"]),
            number(tried.figures.p99_ms),
            f"{tried.figures.num_failed:,}",
            f"{tried.figures.late_share:.1%}",
            tried.verdict.text,
        ]
        for tried in by_rate(result)
    ]
    headings = ("asked/s", "answered/s", "p50 ms", "p99 ms", "failed", "sent late", "")
    return Cells(headings, rows, left=(6,))


def errors(made: Figures) -> Cells:
    """Requests that failed, by code."""
    rows = [[code, f"{count:,}", made.error_texts.get(code, "")] for code, count in made.errors.items()]
    return Cells(("code", "requests", "the first one said"), rows, left=(0, 2))


def server_metrics(metrics: dict[str, Any]) -> Cells:
    """What the server counted."""
    rows = [[name.replace("_", " "), number(value)] for name, value in metrics.items()]
    return Cells(("what", "value"), rows, left=(0,))


def number(value: float | None) -> str:
    """Four digits that count, or a dash."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _cells(values: dict[str, float | None]) -> list[str]:
    return [number(values[name]) for name in _COLUMNS]
