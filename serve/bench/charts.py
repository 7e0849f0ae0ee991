"""Line charts as SVG: drawn here, colored by the page's style sheet, readable without either by their titles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

_WIDTH = 900
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 74, 14, 40
# Labels at the right of lines do not come nearer to each other than this.
_LABEL_GAP = 14.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """From values to places.

    Attributes:
        label: what is shown, with its unit.
        ticks: values that are marked.
        place: a value's place, 0 to 1.
        text: a marked value as text.
    """

    label: str
    ticks: tuple[float, ...]
    place: Callable[[float], float]
    text: Callable[[float], str] = lambda value: f"{value:,.10g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a line.

    Attributes:
        x: its value.
        y: its value.
        title: what is shown where someone points at it; empty leaves it without a dot.
        is_bad: whether it is marked as one that failed.
    """

    x: float
    y: float
    title: str = ""
    is_bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line.

    Attributes:
        name: at its end.
        color: the style sheet's class: a, b or c.
        points: ascending in x.
        is_filled: whether the area under it is.
        through: where the line goes, if not from point to point.
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
        title: for who cannot see it.
        x: the lower axis.
        y: the left axis.
        lines: one at least.
        marks: across it.
        height: in the picture's own units, of which it is 900 wide.
    """

    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    marks: Sequence[Mark] = field(default_factory=tuple)
    height: int = 300

    def svg(self) -> str:
        """As an element of a page."""
        parts = [
            f'<svg viewBox="0 0 {_WIDTH} {self.height}" role="img" aria-label="{escape(self.title)}">',
            *self._axes(),
            *(self._mark(mark) for mark in self.marks),
            *(self._line(line) for line in self.lines),
            *self._names(),
            "</svg>",
        ]
        return "\n".join(parts)

    def _x(self, value: float) -> float:
        return round(_LEFT + self.x.place(value) * (_WIDTH - _LEFT - _RIGHT), 1)

    def _y(self, value: float) -> float:
        return round(self.height - _BOTTOM - self.y.place(value) * (self.height - _BOTTOM - _TOP), 1)

    def _axes(self) -> list[str]:
        right, bottom = _WIDTH - _RIGHT, self.height - _BOTTOM
        parts = []
        for tick in self.y.ticks:
            y = self._y(tick)
            parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{right}" y2="{y}"/>')
            text = escape(self.y.text(tick))
            parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{text}</text>')
        for tick in self.x.ticks:
            x = self._x(tick)
            parts.append(f'<line class="grid" x1="{x}" y1="{_TOP}" x2="{x}" y2="{bottom}"/>')
            text = escape(self.x.text(tick))
            parts.append(f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">{text}</text>')
        parts.append(f'<line class="axis" x1="{_LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>')
        middle = (_LEFT + right) / 2
        parts.append(
            f'<text class="label" x="{middle}" y="{self.height - 5}" text-anchor="middle">'
            f"{escape(self.x.label)}</text>"
        )
        y = (_TOP + bottom) / 2
        parts.append(
            f'<text class="label" transform="translate(12 {y}) rotate(-90)" text-anchor="middle">'
            f"{escape(self.y.label)}</text>"
        )
        return parts

    def _mark(self, mark: Mark) -> str:
        text = escape(mark.text)
        if mark.y is not None:
            y = self._y(mark.y)
            return (
                f'<line class="mark" x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}"/>'
                f'<text class="mark" x="{_LEFT + 6}" y="{y - 5}">{text}</text>'
            )
        x = self._x(mark.x or 0.0)
        return (
            f'<line class="mark" x1="{x}" y1="{_TOP}" x2="{x}" y2="{self.height - _BOTTOM}"/>'
            f'<text class="mark" x="{x - 5}" y="{_TOP + 10}" text-anchor="end">{text}</text>'
        )

    def _line(self, line: Line) -> str:
        places = [(self._x(point.x), self._y(point.y)) for point in line.points]
        path = " ".join(f"{self._x(point.x)},{self._y(point.y)}" for point in line.through or line.points)
        parts = []
        if line.is_filled and places:
            bottom = self.height - _BOTTOM
            area = f"{places[0][0]},{bottom} {path} {places[-1][0]},{bottom}"
            parts.append(f'<polygon class="area {line.color}" points="{area}"/>')
        parts.append(f'<polyline class="line {line.color}" points="{path}"/>')
        for point, (x, y) in zip(line.points, places, strict=True):
            if point.title:
                title = f"<title>{escape(point.title)}</title>"
                parts.append(f'<g class="point">{_shape(point, x, y, line.color)}')
                parts.append(f'<circle class="hit" cx="{x}" cy="{y}" r="9">{title}</circle></g>')
        return "".join(parts)

    def _names(self) -> list[str]:
        """The lines' names at their ends, pushed apart where they would lie on each other."""
        ends = [(self._y((line.through or line.points)[-1].y), line) for line in self.lines if line.points]
        ends.sort(key=lambda end: end[0])
        parts = []
        lowest = -math.inf
        for y, line in ends:
            lowest = max(y, lowest + _LABEL_GAP)
            x = self._x(line.points[-1].x) + 9
            parts.append(
                f'<text class="name {line.color}" x="{x}" y="{lowest + 4}">{escape(line.name)}</text>'
            )
        return parts


def _shape(point: Point, x: float, y: float, color: str) -> str:
    if not point.is_bad:
        return f'<circle class="dot {color}" cx="{x}" cy="{y}" r="3"/>'
    return f'<path class="cross" d="M{x - 4} {y - 4}L{x + 4} {y + 4}M{x - 4} {y + 4}L{x + 4} {y - 4}"/>'


def linear(label: str, most: float, *, least: float = 0.0, most_ticks: int = 6) -> Axis:
    """An axis from ``least`` to ``most`` or a little above, with round marks."""
    width = max(most - least, 1e-9)
    step = _round_up(width / most_ticks)
    end = least + math.ceil(width / step - 1e-9) * step
    count = round((end - least) / step)
    ticks = tuple(round(least + i * step, 12) for i in range(count + 1))
    return Axis(label=label, ticks=ticks, place=lambda value: (value - least) / (end - least))


def logarithmic(label: str, least: float, most: float) -> Axis:
    """An axis in decades, marked at 1, 2 and 5 where there is room, from around ``least`` to around ``most``."""
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
    """An axis on which each further nine takes as much room: 90 %, 99 %, 99.9 %, as far as the values tell."""
    most = max(math.log10(max(num_values, 10)), 1.0)
    ticks = [0.0, 0.5, *(1 - 10.0**-nines for nines in range(1, math.floor(most) + 1))]
    return Axis(
        label=label,
        ticks=tuple(ticks),
        place=lambda share: min(-math.log10(max(1 - share, 1e-12)) / most, 1.0),
        text=lambda share: f"{100 * share:.10g}%",
    )


def _round_up(step: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is not smaller."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))
