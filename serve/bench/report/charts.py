"""Line charts as SVG: places of ticks, lines and labels; ``chart.svg`` is the template, ``page.css`` has the colors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from recsys.pages import templates

#: The templates of the page and of its charts.
TEMPLATES = templates(Path(__file__).parent)

_TOP, _BOTTOM = 14, 40
# Width of a character of a tick's text, and least distance between two texts.
_CHARACTER, _GAP = 7.0, 8.0
# Minimum distance between the names of two lines.
_LABEL_GAP = 14.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    """A size of charts: class of the style sheet, width with its margins, and height in parts of the chart's."""

    name: str
    width: int
    left: int
    right: int
    height: float


# A page shows one of them: the letters of a wide chart are too small on a phone.
_FORMATS = (
    _Format(name="wide", width=900, left=70, right=74, height=1.0),
    _Format(name="narrow", width=380, left=52, right=66, height=0.8),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis: maps values to positions.

    Attributes:
        label: name of the values, with their unit.
        ticks: values that are marked.
        place: returns the position of a value, 0 to 1.
        text: returns the text of a tick.
    """

    label: str
    ticks: tuple[float, ...]
    place: Callable[[float], float]
    text: Callable[[float], str] = lambda value: f"{value:,.10g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a line.

    Attributes:
        x: value on the lower axis.
        y: value on the left axis.
        title: tooltip; a point without one has no dot.
        is_bad: whether the point is marked as failed.
    """

    x: float
    y: float
    title: str = ""
    is_bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line.

    Attributes:
        name: text at the end of the line.
        color: class of the style sheet: a, b or c.
        points: points with ascending x.
        is_filled: whether the area under the line is filled.
        through: points of the line if they differ from ``points``.
    """

    name: str
    color: str
    points: Sequence[Point]
    is_filled: bool = False
    through: Sequence[Point] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A line across the chart, at a value of one of the axes."""

    text: str
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart.

    Attributes:
        title: description for screen readers.
        x: lower axis.
        y: left axis.
        lines: one line or more.
        marks: lines across the chart.
        height: height, in units of which a wide chart is 900 wide.
    """

    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    marks: Sequence[Mark] = field(default_factory=tuple)
    height: int = 300

    def svg(self) -> Markup:
        """Return the chart as two elements of a page, of which the style sheet shows one."""
        return Markup("").join(_Drawing(self, each).svg() for each in _FORMATS)


class _Drawing:
    """A chart in one format.

    Args:
        chart: the chart.
        format_: its size.
    """

    def __init__(self, chart: Chart, format_: _Format) -> None:
        self._chart = chart
        self._format = format_
        self._height = round(chart.height * format_.height)

    def svg(self) -> Markup:
        """Return it as an element of a page."""
        chart, each = self._chart, self._format
        frame = {
            "name": each.name,
            "width": each.width,
            "height": self._height,
            "left": each.left,
            "right": each.width - each.right,
            "top": _TOP,
            "bottom": self._height - _BOTTOM,
        }
        marks = [
            {"text": mark.text, "x": self._x(mark.x or 0.0), "y": None if mark.y is None else self._y(mark.y)}
            for mark in chart.marks
        ]
        return Markup(
            TEMPLATES.get_template("chart.svg").render(
                title=chart.title,
                frame=frame,
                x_label=chart.x.label,
                y_label=chart.y.label,
                x_ticks=_apart([(self._x(tick), chart.x.text(tick)) for tick in chart.x.ticks]),
                y_ticks=[(self._y(tick), chart.y.text(tick)) for tick in chart.y.ticks],
                marks=marks,
                lines=[self._placed(line) for line in chart.lines],
                names=self._names(),
            )
        )

    def _x(self, value: float) -> float:
        each = self._format
        return round(each.left + self._chart.x.place(value) * (each.width - each.left - each.right), 1)

    def _y(self, value: float) -> float:
        lowest = self._height - _BOTTOM
        return round(lowest - self._chart.y.place(value) * (lowest - _TOP), 1)

    def _placed(self, line: Line) -> dict[str, Any]:
        """Return a line with the positions of its points in the picture."""
        return {
            "color": line.color,
            "is_filled": line.is_filled,
            "path": " ".join(
                f"{self._x(point.x)},{self._y(point.y)}" for point in line.through or line.points
            ),
            "points": [replace(point, x=self._x(point.x), y=self._y(point.y)) for point in line.points],
        }

    def _names(self) -> list[dict[str, Any]]:
        """Return the lines' names at their ends, moved apart if they overlap."""
        lines = [line for line in self._chart.lines if line.points]
        ends = [(self._y((line.through or line.points)[-1].y), line) for line in lines]
        ends.sort(key=lambda end: end[0])
        names = []
        lowest = -math.inf
        for y, line in ends:
            lowest = max(y, lowest + _LABEL_GAP)
            x = self._x(line.points[-1].x) + 9
            names.append({"text": line.name, "color": line.color, "x": x, "y": lowest + 4})
        return names


def _apart(ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return the ticks without the texts that would touch the one before."""
    shown, end = [], -math.inf
    for x, text in ticks:
        half = len(text) * _CHARACTER / 2
        has_room = x - half >= end
        shown.append((x, text if has_room else ""))
        end = x + half + _GAP if has_room else end
    return shown


def linear(label: str, most: float, *, least: float = 0.0, most_ticks: int = 6) -> Axis:
    """Return an axis from ``least`` to ``most`` or a little above, with round ticks."""
    width = max(most - least, 1e-9)
    step = _round_up(width / most_ticks)
    end = least + math.ceil(width / step - 1e-9) * step
    count = round((end - least) / step)
    ticks = tuple(round(least + i * step, 12) for i in range(count + 1))
    return Axis(label=label, ticks=ticks, place=lambda value: (value - least) / (end - least))


def logarithmic(label: str, least: float, most: float) -> Axis:
    """Return an axis in decades from about ``least`` to about ``most``, with ticks at 1, 2 and 5 if there is room."""
    least = max(least, 1e-6)
    most = max(most, least * 1.01)
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
    all_marks = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in (1, 2, 5)]
    start = max(mark for mark in all_marks if mark <= least * (1 + 1e-9))
    end = min(mark for mark in [*all_marks, 10.0 ** (last + 1)] if mark >= most * (1 - 1e-9))
    ticks = [mark for mark in all_marks if start <= mark <= end]
    if len(ticks) > 8:
        ticks = [mark for mark in ticks if math.log10(mark).is_integer() or mark in (start, end)]
    low, width = math.log10(start), math.log10(end / start)
    return Axis(
        label=label,
        ticks=tuple(ticks),
        place=lambda value: (math.log10(max(value, start)) - low) / width,
    )


def percentiles(label: str, num_values: int) -> Axis:
    """Return an axis on which each further nine has the same width: 90 %, 99 %, 99.9 %, up to the number of values."""
    most = max(math.log10(max(num_values, 10)), 1.0)
    ticks = [0.0, 0.5, *(1 - 10.0**-nines for nines in range(1, math.floor(most) + 1))]
    return Axis(
        label=label,
        ticks=tuple(ticks),
        place=lambda share: min(-math.log10(max(1 - share, 1e-12)) / most, 1.0),
        text=lambda share: f"{100 * share:.10g}%",
    )


def _round_up(step: float) -> float:
    """Return the least of 1, 2 and 5 times a power of ten that is not smaller."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))
