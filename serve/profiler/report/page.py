"""The profile as one HTML page without scripts, other files or network.

``page.html`` is its template, ``page.css`` its part of the style sheet. Names of the artifact are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from recsys.pages import style, templates
from serve.profiler.report.texts import (
    about,
    headline,
    limit_rows,
    needs_text,
    percent,
    reached_text,
    shown,
    time_text,
    what,
)
from serve.profiler.result import (
    BETWEEN,
    CALL,
    CONTEXTS,
    OperatorRow,
    Profile,
    SizeProfile,
    linear_layers,
    lookups,
)
from serve.profiler.work import LINEAR, LOOKUPS, REGION

_FOLDER = Path(__file__).parent
_TEMPLATES = templates(_FOLDER)
# Kinds of operators by the class that colors them, in the order of the bars.
_KINDS = {
    "lookup": "lookups",
    "linear": "linear layers",
    "interaction": "interactions, other products",
    "own": "other steps of the program",
    "other": "operators of torch",
    "between": "between operators, call from Python",
}


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of a bar.

    Attributes:
        kind: Its color.
        width: How long it is, in percent of its bar.
        needed: The part of it that the machine's limits leave, in percent.
        title: Its tooltip.
    """

    kind: str
    width: float
    needed: float
    title: str


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The time of batches of one size."""

    name: str
    text: str
    segments: tuple[Segment, ...]


def page(profile: Profile) -> str:
    """Return the profile as HTML."""
    bars = list(_bars(profile.sizes))
    kinds = {segment.kind for bar in bars for segment in bar.segments}
    return _TEMPLATES.get_template("page.html").render(
        title=f"Profile of {profile.artifact}",
        style=style(_FOLDER),
        headline=headline(profile),
        about=about(profile),
        started_at=profile.machine["started_at"],
        tiles=_tiles(profile),
        bars=bars,
        legend=[(kind, name) for kind, name in _KINDS.items() if kind in kinds],
        hints=profile.hints,
        notes=profile.notes,
        tables=_tables(profile),
        limits=limit_rows(profile),
        percent=percent,
        what=what(profile),
    )


def kind_of(row: OperatorRow) -> str:
    """Return the kind of an operator, one of the classes of the style sheet."""
    if row.name in LOOKUPS:
        return "lookup"
    if row.name in LINEAR:
        return "linear"
    if row.name in (BETWEEN, CALL):
        return "between"
    if row.flops and not row.rows:
        return "interaction"
    return "other" if "::" in row.name or row.name == REGION else "own"


def _bars(sizes: Sequence[SizeProfile]) -> Iterator[Bar]:
    for size in sizes:
        segments = []
        for kind in _KINDS:
            for row in size.operators:
                row_us = row.share * size.us
                if kind_of(row) != kind or not row_us:
                    continue
                reach = "" if row.of_limit is None else f", {row.of_limit:.0%} of the limit"
                segments.append(
                    Segment(
                        kind=kind,
                        width=round(100 * row.share, 3),
                        needed=round(100 * min((row.least_us or 0.0) / row_us, 1.0), 2),
                        title=f"{row.title}: {time_text(row.us)} µs a batch, {row.share:.1%}{reach}",
                    )
                )
        yield Bar(
            name=f"batch of {size.batch_size}",
            text=f"{time_text(size.us / size.batch_size)} µs a row",
            segments=tuple(segments),
        )


def _tiles(profile: Profile) -> list[tuple[str, str]]:
    """Return the value and the label of each tile."""
    tiles = [
        (f"{profile.rows_per_s:,.0f}", "rows/s on one thread, in the mix"),
        (f"{time_text(profile.us)} µs", "the mean batch"),
    ]
    if profile.spaces_us:
        tiles.append((f"{time_text(profile.spaces_us[CONTEXTS])} µs", "of it once a context"))
    for name, row in (
        ("lookups", lookups(profile.operators)),
        ("linear layers", linear_layers(profile.operators)),
    ):
        if row is not None:
            tiles.append((f"{row.share:.0%}", f"of the time in {name}"))
            if row.of_limit is not None:
                tiles.append((f"{row.of_limit:.0%}", f"of the limit reached by {name}"))
    return tiles


def _tables(profile: Profile) -> list[dict[str, object]]:
    """Return the tables of operators: of the mix, then of each size."""
    parts = [("mean batch of the mix", profile.us, profile.operators)]
    parts += [(f"batch {size.batch_size}", size.us, size.operators) for size in profile.sizes]
    return [
        {"title": f"{name}: {time_text(us)} µs", "rows": _rows(operators, profile)}
        for name, us, operators in parts
    ]


def _rows(rows: Sequence[OperatorRow], profile: Profile) -> list[dict[str, object]]:
    return [
        {
            "kind": kind_of(row),
            "name": row.name,
            "label": row.title.removeprefix(row.name).strip(),
            "calls": f"{row.calls:.0f}" if row.calls else "",
            "us": time_text(row.us),
            "share": f"{row.share:.1%}",
            "needs": needs_text(row),
            "reaches": reached_text(row, profile.limits),
            "of_limit": row.of_limit,
        }
        for row in shown(rows)
    ]
