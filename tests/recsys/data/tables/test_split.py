"""Rows are held out by times in any unit, and the user is told where the time does not divide them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recsys.data.lines import DataError
from recsys.data.tables.dataset import table_dataset
from recsys.inputs.schema import LabelColumn, Schema, TableSpec

_START = 1_767_225_600  # 2026-01-01
_HOURS = _START + 3600 * np.arange(240)
_TEXTS = [str(np.datetime64(int(s), "s")) for s in _HOURS]


def _schema(**changes: Any) -> Schema:
    table = TableSpec(name="u", num_embeddings=9, feature_names=("user",))
    return Schema(labels=(LabelColumn(name="y"),), dense=(), tables=(table,), time="t", **changes)


def _split(times: Any, **changes: Any) -> tuple[int, tuple[str, ...]]:
    """Return the number of rows that are held out, and the notices."""
    data = pa.table({"y": [i % 2 for i in range(240)], "user": [i % 9 for i in range(240)], "t": times})
    dataset = table_dataset(data, _schema(**changes))
    assert dataset.num_train_rows + dataset.num_held_out_rows == 240
    return dataset.num_held_out_rows, dataset.notices


@pytest.mark.parametrize(
    "times",
    [
        pytest.param(_HOURS, id="seconds"),
        pytest.param(_HOURS * 1000, id="milliseconds"),
        pytest.param(_HOURS * 10**6, id="microseconds"),
        pytest.param(_HOURS * 10**9, id="nanoseconds"),
        pytest.param([str(s * 1000) for s in _HOURS], id="texts-of-milliseconds"),
        pytest.param(_HOURS.astype(float) + 0.5, id="fractions"),
        pytest.param([int(t[:10].replace("-", "") + t[11:13]) for t in _TEXTS], id="digits"),
        pytest.param([int(t[2:10].replace("-", "") + t[11:13]) for t in _TEXTS], id="short-digits"),
        pytest.param(_TEXTS, id="texts"),
        pytest.param(pa.array(_HOURS).cast(pa.timestamp("s")), id="timestamps"),
    ],
)
def test_a_date_bounds_times_of_every_unit(times: Any) -> None:
    assert _split(times, held_out_from="2026-01-09 12:00") == (36, ())


def test_times_with_a_format() -> None:
    times = [f"{t[8:10]}/{t[5:7]}/{t[:4]} {t[11:13]}h" for t in _TEXTS]
    for bound in ("2026-01-10", "10/01/2026 00h"):
        assert _split(times, time_format="%d/%m/%Y %Hh", held_out_from=bound) == (24, ())
    with pytest.raises(DataError, match=r"row 0: column 't': got .* expected a date in the form '%d.%m.%Y'"):
        _split(times, time_format="%d.%m.%Y")


@pytest.mark.parametrize(
    ("times", "bound", "text"),
    [
        (
            _HOURS * 1000,
            _START,
            "a time in seconds, but column 't' holds milliseconds.*expected 1767225600000, or",
        ),
        (
            _HOURS,
            _START * 10**9,
            "a time in nanoseconds, but column 't' holds seconds.*expected 1767225600, or",
        ),
        (np.arange(240), "2026-01-05", "holds numbers such as 119, which are not seconds, milliseconds"),
        (_TEXTS, "yesterday", "expected a date as 2026-01-31"),
        (_TEXTS, "2025-12-31", r"no row of column 't' is earlier \(the first: 2026-01-01 00:00:00\)"),
        (_HOURS, _START, r"no row of column 't' is earlier \(the first: 1767225600\)"),
    ],
)
def test_bounds_that_are_refused(times: Any, bound: Any, text: str) -> None:
    with pytest.raises(DataError, match=text):
        _split(times, held_out_from=str(bound))


def test_a_number_bounds_dates() -> None:
    assert _split(_TEXTS, held_out_from=str(int(_HOURS[200]) * 1000)) == (40, ())
    assert _split(np.arange(240), held_out_from="200") == (40, ())


def test_where_no_row_is_late_the_last_ones_are_held_out() -> None:
    order = np.random.default_rng(0).permutation(240)
    num_rows, (notice,) = _split(_HOURS[order], held_out_from="2027-01-01")
    assert num_rows == 24
    assert notice == (
        "schema.held_out_from: all rows of column 't' are before '2027-01-01' (the last: 1768086000); held out are "
        "the last 10% of the rows by it"
    )


@pytest.mark.parametrize(
    ("times", "text"),
    [
        (
            np.full(240, 14102100),
            "column 't' is 14102100 in all rows; held out are the last 25% of the rows as they",
        ),
        (["2026-01-31"] * 240, "column 't' is 2026-01-31 00:00:00 in all rows"),
        (pa.nulls(240, pa.float64()), "column 't' has no value in all rows"),
    ],
    ids=["number", "date", "none"],
)
def test_one_time_in_all_rows(times: Any, text: str) -> None:
    num_rows, (notice,) = _split(times, held_out=0.25)
    assert num_rows == 60
    assert text in notice


def test_rows_without_a_time_come_first() -> None:
    times = [None if i % 3 == 0 else int(s) for i, s in enumerate(_HOURS)]
    assert _split(times) == (24, ())
    assert _split(times, held_out_from=str(int(_HOURS[230]))) == (7, ())
    assert _split([None] * 239 + [5]) == (1, ())


def _parts(folder: Path, times: Sequence[Any]) -> Path:
    for i, part in enumerate(times):
        rows = "".join(f"{k % 2},{k % 9},{time}\n" for k, time in enumerate(part))
        (folder / f"part-{i}.csv").write_text(f"y,user,t\n{rows}")
    return folder


def test_a_part_without_times_is_learned_from(tmp_path: Path) -> None:
    folder = _parts(tmp_path, [_HOURS.tolist(), [""] * 60])
    assert table_dataset(folder, _schema()).num_held_out_rows == 30
    assert table_dataset(folder, _schema(held_out_from=str(_HOURS[200]))).num_held_out_rows == 40


def test_parts_of_numbers_and_of_dates_are_refused(tmp_path: Path) -> None:
    folder = _parts(tmp_path, [_HOURS.tolist(), _TEXTS])
    with pytest.raises(
        DataError, match=r"part-1.csv, line 2: column 't': got dates, expected numbers as in rows"
    ):
        table_dataset(folder, _schema())
