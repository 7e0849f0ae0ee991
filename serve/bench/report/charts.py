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

_WIDTH = 900
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 74, 14, 40
# Minimum distance between the names of two lines.
_LABEL_GAP = 14.0


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
        height: height, in units of which the chart is 900 wide.
    """

    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    marks: Sequence[Mark] = field(default_factory=tuple)
    height: int = 300

    def svg(self) -> Markup:
        """Return the chart as an element of a page."""
        right, bottom = _WIDTH - _RIGHT, self.height - _BOTTOM
        frame = {
            "width": _WIDTH,
            "height": self.height,
            "left": _LEFT,
            "right": right,
            "top": _TOP,
            "bottom": bottom,
        }
        marks = [
            {"text": mark.text, "x": self._x(mark.x or 0.0), "y": None if mark.y is None else self._y(mark.y)}
            for mark in self.marks
        ]
        return Markup(
            TEMPLATES.get_template("chart.svg").render(
                title=self.title,
                frame=frame,
                x_label=self.x.label,
                y_label=self.y.label,
                x_ticks=[(self._x(tick), self.x.text(tick)) for tick in self.x.ticks],
                y_ticks=[(self._y(tick), self.y.text(tick)) for tick in self.y.ticks],
                marks=marks,
                lines=[self._placed(line) for line in self.lines],
                names=self._names(),
            )
        )

    def _x(self, value: float) -> float:
        return round(_LEFT + self.x.place(value) * (_WIDTH - _LEFT - _RIGHT), 1)

    def _y(self, value: float) -> float:
        return round(self.height - _BOTTOM - self.y.place(value) * (self.height - _BOTTOM - _TOP), 1)

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
        ends = [(self._y((line.through or line.points)[-1].y), line) for line in self.lines if line.points]
        ends.sort(key=lambda end: end[0])
        names = []
        lowest = -math.inf
        for y, line in ends:
            lowest = max(y, lowest + _LABEL_GAP)
            x = self._x(line.points[-1].x) + 9
            names.append({"text": line.name, "color": line.color, "x": x, "y": lowest + 4})
        return names


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
