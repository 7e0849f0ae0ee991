"""Which rows of a table are learned from, and which are held out.

Shape letters: N number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recsys.data.examples import held_out_rows
from recsys.data.lines import DataError
from recsys.data.tables.columns import Columns, Times
from recsys.data.tables.reading.pieces import Piece
from recsys.data.tables.values.conversions import cast_or_none
from recsys.data.tables.values.moments import UNITS, moments_of, seconds_of, unit_of, unit_start
from recsys.inputs.schema import Schema

# Times that are whole numbers of digits: 20260131, 2026013117, 26013117, ...
DIGITS = ("%Y%m%d", "%y%m%d%H", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S", "%y%m%d")


@dataclass(frozen=True, kw_only=True)
class Split:
    """A table's rows in two parts.

    Attributes:
        train: The rows to learn from, at least one.
        held_out: The rows to measure on, at least one.
        notices: What a user should know of the parts.
    """

    train: list[Piece]
    held_out: list[Piece]
    notices: tuple[str, ...]


def split(pieces: Sequence[Piece], schema: Schema) -> Split:
    """Divide rows into those to learn from and those to measure on: the last ones by time, or of the table.

    Raises:
        DataError: There are fewer than two rows, or none is before the schema's ``held_out_from``.
    """
    num_rows = sum(map(len, pieces))
    if num_rows < 2:
        raise DataError(
            f"data: got {num_rows} rows, expected at least 2: one to learn from, one to measure on"
        )
    is_late = np.arange(num_rows) >= num_rows - held_out_rows(num_rows, schema.held_out)
    notice = ""
    if schema.time is not None:
        by_time, notice = _late_rows(_times(pieces, schema), schema)
        is_late = is_late if by_time is None else by_time
    starts = np.cumsum([0, *map(len, pieces)]).tolist()
    train, held_out = (
        [
            piece.keeping(_spread(part[start : start + len(piece)], piece))
            for piece, start in zip(pieces, starts, strict=False)
            if part[start : start + len(piece)].any()
        ]
        for part in (~is_late, is_late)
    )
    return Split(train=train, held_out=held_out, notices=(notice,) if notice else ())


def _spread(kept: NDArray[np.bool_], piece: Piece) -> NDArray[np.bool_]:
    """Return which of all rows of a piece are meant, where some of its kept rows are."""
    mask = piece.mask.copy()
    mask[mask] = kept
    return mask


def _times(pieces: Sequence[Piece], schema: Schema) -> Times:
    """Return the time of each kept row, minus infinity for a missing one."""
    assert schema.time is not None
    parts: list[NDArray[np.float64]] = []
    kinds: set[bool] = set()
    for piece in pieces:
        times = Columns(piece.read([schema.time]), piece.place).times(schema.time, schema.time_format)
        values = times.values[piece.mask]
        if not np.isnan(values).all():
            kinds.add(times.are_dates)
        if len(kinds) > 1:
            raise DataError(
                f"{piece.place(0)}: column {schema.time!r}: got {'dates' if times.are_dates else 'numbers'}, expected "
                f"{'numbers' if times.are_dates else 'dates'} as in rows before"
            )
        parts.append(np.nan_to_num(values, nan=-np.inf, posinf=np.inf, neginf=-np.inf))
    values = np.concatenate(parts)
    if kinds == {False} and not schema.time_format:
        return _in_one_unit(values)
    return Times(values, are_dates=kinds == {True})


def _in_one_unit(numbers: NDArray[np.float64]) -> Times:
    """Return numbers as times: as they are, or seconds where they count in several units, as parts of a table may."""
    known = numbers[np.isfinite(numbers) & (numbers > 0)]
    units = {unit_of(known.min()), unit_of(known.max())} if len(known) else set()
    if len(units) < 2 or "" in units:
        return Times(numbers, are_dates=False)
    per_second = np.array(list(UNITS.values()))
    # The years of a unit are not those of the next one.
    first = unit_start(per_second)
    places = np.searchsorted(first, numbers, side="right") - 1
    seconds = np.where(places < 0, -np.inf, numbers / per_second[places])
    return Times(seconds, are_dates=True)


def _late_rows(times: Times, schema: Schema) -> tuple[NDArray[np.bool_] | None, str]:
    """Return the rows to hold out by time, None if it does not divide them, and what to tell the user."""
    values, name = times.values, repr(schema.time)
    notice = ""
    if schema.held_out_from:
        bound = _bound(times, schema)
        is_late = values >= bound
        if is_late.all():
            raise DataError(
                f"schema.held_out_from: got {schema.held_out_from!r}, but no row of column {name} is earlier (the "
                f"first: {_shown(values.min(), times)}), so that there are no rows to learn from; expected a later one"
            )
        if is_late.any():
            return is_late, ""
        notice = (
            f"schema.held_out_from: all rows of column {name} are before {schema.held_out_from!r} (the last: "
            f"{_shown(values.max(), times)}); "
        )
    share = f"{schema.held_out:.0%} of the rows"
    if values.min() == values.max():
        what = "has no value" if np.isinf(values[0]) else f"is {_shown(values[0], times)}"
        notice = notice or f"schema.time: column {name} {what} in all rows; "
        return None, f"{notice}held out are the last {share} as they lie"
    place = len(values) - held_out_rows(len(values), schema.held_out)
    bound = np.partition(values, place)[place]
    if bound == values.min():
        # Most rows have the first time: hold out all later ones.
        bound = values[values > bound].min()
    return values >= bound, f"{notice}held out are the last {share} by it" if notice else ""


def _bound(times: Times, schema: Schema) -> float:
    """Return ``held_out_from`` as a number that can be compared with the times."""
    given = schema.held_out_from
    known = times.values[np.isfinite(times.values)]
    middle = float(np.median(known)) if len(known) else 0.0
    text = pa.array([given])
    number = cast_or_none(text, pa.float64())
    date = moments_of(text, schema.time_format) if schema.time_format else None
    if date is None and (number is None or times.are_dates):
        date = moments_of(text)
    if date is not None and not date.null_count:
        seconds = float(seconds_of(date)[0])
        return seconds if times.are_dates else _in_numbers(seconds, np.unique(known), schema)
    if number is None or times.are_dates:
        raise DataError(
            f"schema.held_out_from: got {given!r}, expected a date as 2026-01-31 or 2026-01-31 12:00:00, as column "
            f"{schema.time!r} holds them"
        )
    value = float(number[0].as_py())
    given_unit, unit = unit_of(value), unit_of(middle)
    if given_unit and unit and given_unit != unit:
        raise DataError(
            f"schema.held_out_from: got {given!r}, which is a time in {given_unit}, but column {schema.time!r} holds "
            f"{unit}, such as {middle:.0f}; expected {value / UNITS[given_unit] * UNITS[unit]:.0f}, or a date"
        )
    return value


def _in_numbers(seconds: float, known: NDArray[np.float64], schema: Schema) -> float:
    """Return a moment in the unit or the digits of a column's numbers."""
    some = known[:: max(1, len(known) // 100)]
    form = digits_of(pa.array(some.astype(np.int64))) if len(some) else ""
    if form:
        moment = pa.scalar(int(seconds), pa.timestamp("s"))
        return float(pc.strftime(moment, format=form).as_py())
    middle = float(np.median(some)) if len(some) else 0.0
    if unit_of(middle):
        return seconds * UNITS[unit_of(middle)]
    raise DataError(
        f"schema.held_out_from: got {schema.held_out_from!r}, but column {schema.time!r} holds numbers such as "
        f"{middle:.0f}, which are not {', '.join(UNITS)} since 1970; expected a number as in the column"
    )


def digits_of(numbers: pa.Array, first: str = "") -> str:
    """Return in which of ``DIGITS`` whole numbers are dates from 1950 to 2100; empty if in none.

    Args:
        numbers: The numbers.
        first: The form that is tried before the others.
    """
    for form in (first, *DIGITS) if first else DIGITS:
        dates = moments_of(numbers, form)
        if dates is None:
            continue
        years = pc.min_max(pc.year(dates)).as_py()
        if years["min"] is not None and years["min"] >= 1950 and years["max"] <= 2100:
            return form
    return ""


def _shown(time: float, times: Times) -> str:
    if not times.are_dates or not np.isfinite(time):
        return f"{time:.15g}"
    return str(pa.scalar(int(time), pa.timestamp("s")).as_py())
