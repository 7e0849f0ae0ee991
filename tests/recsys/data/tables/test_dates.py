"""Columns of dates are inferred, read as the IDs of their hour and weekday, and named where they are wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recsys.data.examples import Examples
from recsys.data.lines import DataError
from recsys.data.tables.dataset import table_dataset
from recsys.data.tables.infer import infer
from recsys.inputs.schema import LabelColumn, Schema, TableSpec
from tests.recsys.data.blocks import all_of

_DATES = [datetime(2026, 1, 30, 17, 5) + i * timedelta(hours=5, seconds=1) for i in range(60)]
_SCHEMA = Schema(
    labels=(LabelColumn(name="click"),),
    dense=(),
    tables=(
        TableSpec(name="h", num_embeddings=24, feature_names=("at_hour",), date="at", part="hour"),
        TableSpec(name="w", num_embeddings=7, feature_names=("at_weekday",), date="at", part="weekday"),
    ),
)


def _table(dates: Any, **columns: Any) -> pa.Table:
    return pa.table({"click": [i % 2 for i in range(len(dates))], "at": dates, **columns})


def _train_rows(data: Any, schema: Schema = _SCHEMA) -> Examples:
    blocks = [all_of(block) for block in table_dataset(data, schema).train()]
    return Examples.concatenate(blocks)


@pytest.mark.parametrize(
    "dates",
    [
        pytest.param(pa.array(_DATES, pa.timestamp("s")), id="seconds"),
        pytest.param(pa.array(_DATES, pa.timestamp("ns")), id="nanoseconds"),
        pytest.param([str(date) for date in _DATES], id="texts"),
        pytest.param([date.isoformat() + "Z" for date in _DATES], id="texts-in-utc"),
        pytest.param(
            [f"{(date + timedelta(hours=2)).isoformat()}+02:00" for date in _DATES], id="texts-with-zone"
        ),
        pytest.param(
            pa.array(
                [date.replace(tzinfo=UTC).astimezone(timezone(timedelta(hours=-8))) for date in _DATES],
                pa.timestamp("us", "-08:00"),
            ),
            id="zone",
        ),
    ],
)
def test_dates_become_hours_and_weekdays(dates: Any) -> None:
    read = _train_rows(_table(dates))
    assert read.bags["at_hour"].values.tolist() == [date.hour for date in _DATES[:54]]
    assert read.bags["at_weekday"].values.tolist() == [date.weekday() for date in _DATES[:54]]
    assert set(np.diff(read.bags["at_hour"].offsets).tolist()) == {1}


def test_a_missing_date_has_no_id(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("click,at\n" + "0,2026-01-31 12:00\n1,\n1,2026-02-01\n" * 10)
    read = _train_rows(path)
    assert np.diff(read.bags["at_hour"].offsets).tolist()[:6] == [1, 0, 1, 1, 0, 1]
    assert read.bags["at_hour"].values.tolist()[:2] == [12, 0]
    assert read.bags["at_weekday"].values.tolist()[:2] == [5, 6]


def test_a_date_beside_the_time_is_inferred() -> None:
    texts = [str(date) for date in _DATES]
    data = _table(texts, signup=[text[:10] for text in texts], time=range(10**6, 10**6 + 60), item=range(60))
    inferred = infer(data)
    uses = {column.name: (column.use, column.kind, column.reason) for column in inferred.columns}
    assert uses["at"] == ("date", "dates", "dates, of which hour and weekday are inputs")
    assert uses["signup"] == ("date", "dates", "dates, of which weekday is an input")
    assert inferred.schema.time == "time"
    assert {
        table.name: (table.date, table.part, table.num_embeddings) for table in inferred.schema.tables
    } == {
        "item": ("", "", 1024),
        "at_hour": ("at", "hour", 24),
        "at_weekday": ("at", "weekday", 7),
        "signup_weekday": ("signup", "weekday", 7),
    }
    bags = _train_rows(data, inferred.schema).bags
    assert bags["signup_weekday"].values.tolist() == bags["at_weekday"].values.tolist()


def test_the_first_date_that_is_named_as_a_time_is_the_time() -> None:
    inferred = infer(_table(_DATES, date=_DATES, timestamp=range(10**9, 10**9 + 60), item=range(60)))
    assert inferred.schema.time == "date"
    reasons = {column.name: column.reason for column in inferred.columns}
    assert reasons["timestamp"] == "dates of the same hour and weekday"


def test_other_times_say_why_they_are_ignored() -> None:
    took = pa.array([timedelta(seconds=i) for i in range(60)], pa.duration("s"))
    same = [f"2026-01-{1 + 7 * (i % 2):02}" for i in range(60)]
    columns = infer(_table(_DATES, took=took, same=same)).columns
    assert {column.name: (column.use, column.reason) for column in columns[2:]} == {
        "took": ("ignored", "neither dates nor numbers; as numbers they are a dense feature"),
        "same": ("ignored", "dates of the same hour and weekday"),
    }


def test_a_part_does_not_take_a_columns_name() -> None:
    schema = infer(_table(_DATES, at_hour=["a", "b", "c"] * 20)).schema
    assert schema.feature_names == ("at_hour", "at_hour_", "at_weekday")


def test_columns_without_dates() -> None:
    with pytest.raises(DataError, match=r"column 'at': got list<.*>, expected timestamps, dates, texts"):
        table_dataset(_table([[1]] * 60), _SCHEMA)
    with pytest.raises(DataError, match=r"row 0: column 'at': got '7', expected a date .* or seconds, milli"):
        _train_rows(_table(range(7, 67)))
    with pytest.raises(
        DataError, match=r"data, row 30: column 'at': got 'noon', expected a date as 2026-01-31"
    ):
        _train_rows(_table([*map(str, _DATES[:30]), *["noon"] * 30]))
    with pytest.raises(DataError, match="got dates with and without a time zone"):
        _train_rows(_table([str(date) + "Z" * (i % 2) for i, date in enumerate(_DATES)]))
