"""Dates as people write them are times and features, or the reason says why they are neither."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recsys.data.examples import Examples
from recsys.data.tables.dataset import table_dataset
from recsys.data.tables.infer import ColumnReport, infer
from recsys.inputs.schema import Schema
from recsys.train.commands.train import main as train_main
from tests.recsys.data.blocks import all_of
from tests.support.click_tables import write_clicks

_RNG = np.random.default_rng(0)
_MOMENTS = [
    datetime(2026, 1, 1) + timedelta(seconds=int(s)) for s in np.sort(_RNG.integers(0, 86400 * 40, 400))
]
_SHORT = [datetime(2026, 1, 1) + timedelta(seconds=int(s)) for s in np.sort(_RNG.integers(0, 86400 * 7, 400))]
_SECONDS = [int((at - datetime(1970, 1, 1)).total_seconds()) for at in _MOMENTS]


def _csv(path: Path, name: str, values: list[Any]) -> Path:
    rows = (f'{i % 2},{i % 9},"{value}"\n' for i, value in enumerate(values))
    path.write_text(f"click,user_id,{name}\n" + "".join(rows))
    return path


def _report(data: Any, name: str) -> ColumnReport:
    return next(column for column in infer(data).columns if column.name == name)


def _written(form: str) -> Callable[[datetime], str]:
    return lambda at: at.strftime(form)


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(str, id="iso"),
        pytest.param(_written("%Y-%m-%dT%H:%M:%S.123456789"), id="nanoseconds"),
        pytest.param(_written("%Y-%m-%d %H:%M:%S UTC"), id="utc"),
        pytest.param(_written("%Y-%m-%d %H:%M:%S.1234567 GMT"), id="gmt-and-fractions"),
        pytest.param(_written("%d/%m/%Y %H:%M:%S"), id="day-first"),
        pytest.param(_written("%m/%d/%Y %I:%M:%S %p"), id="month-first"),
        pytest.param(_written("%d.%m.%Y %H:%M:%S"), id="points"),
        pytest.param(_written("%d-%m-%y %H:%M:%S".replace("-", "/")), id="short-years"),
        pytest.param(_written("%Y/%m/%d %H:%M:%S.250"), id="year-first-slashes"),
        pytest.param(_written("%d/%b/%Y:%H:%M:%S +0000"), id="web-server"),
        pytest.param(_written("%a, %d %b %Y %H:%M:%S GMT"), id="mail"),
        pytest.param(_written("%a %b %d %H:%M:%S %Y"), id="c"),
        pytest.param(_written("%Y%m%d%H%M%S"), id="digits"),
        pytest.param(lambda at: int((at - datetime(1970, 1, 1)).total_seconds()), id="seconds"),
        pytest.param(lambda at: int((at - datetime(1970, 1, 1)).total_seconds() * 1e3), id="milliseconds"),
        pytest.param(
            lambda at: int((at - datetime(1970, 1, 1)).total_seconds()) * 10**9, id="nanosecond-numbers"
        ),
    ],
)
@pytest.mark.parametrize("moments", [_MOMENTS, _SHORT], ids=["40-days", "7-days"])
def test_dates_in_many_forms(
    tmp_path: Path, write: Callable[[datetime], Any], moments: list[datetime]
) -> None:
    """They are the time where they are named so, else hours and weekdays, as training reads them."""
    path = _csv(tmp_path / "a.csv", "timestamp", [write(at) for at in moments])
    inferred = infer(path)
    assert inferred.schema.time == "timestamp"
    assert Schema.from_json(inferred.schema.to_json()) == inferred.schema
    dataset = table_dataset(path, inferred.schema)
    assert (dataset.num_train_rows, dataset.num_held_out_rows, dataset.notices) == (360, 40, ())
    path = _csv(tmp_path / "b.csv", "signup_time", [write(at) for at in moments])
    schema = infer(path).schema
    assert schema.feature_names == ("user_id", "signup_time_hour", "signup_time_weekday")
    read = Examples.concatenate([all_of(block) for block in table_dataset(path, schema).train()])
    assert read.bags["signup_time_hour"].values.tolist() == [at.hour for at in moments[:360]]
    assert read.bags["signup_time_weekday"].values.tolist() == [at.weekday() for at in moments[:360]]


def test_hours_of_avazu(tmp_path: Path) -> None:
    schema = infer(write_clicks(tmp_path / "clicks.csv", num_rows=500)).schema
    assert (schema.time, schema.time_format) == ("hour", "%y%m%d%H")


@pytest.mark.parametrize("zero", ["0000-00-00 00:00:00", "", "NULL", "0001-01-01 00:00:00"])
def test_rows_without_a_time_are_learned_from(tmp_path: Path, zero: str) -> None:
    texts = [zero if i in (5, 399) else str(at) for i, at in enumerate(_MOMENTS)]
    path = _csv(tmp_path / "a.csv", "timestamp", texts)
    schema = infer(path).schema
    assert schema.time == "timestamp"
    dataset = table_dataset(path, schema)
    assert (dataset.num_train_rows, dataset.num_held_out_rows) == (360, 40)
    (held_out,) = dataset.held_out()
    assert all_of(held_out).labels[:, 0].tolist() == [i % 2 for i in range(359, 399)]


@pytest.mark.parametrize(
    ("name", "values", "use", "reason"),
    [
        pytest.param(
            "timestamp",
            [*map(str, _MOMENTS[1:]), "soon"],
            "ignored",
            "'soon' is not a date in a known format",
            id="odd",
        ),
        pytest.param(
            "created_at",
            [f"{at:%d/%m/%Y}" for at in _SHORT],
            "ignored",
            "dates, of which '01/01/2026' may be %d/%m/%Y or %m/%d/%Y: a schema's format says which",
            id="ambiguous",
        ),
        pytest.param(
            "event_time", [f"{i}h{i}" for i in range(400)], "ignored", "named as a time, but", id="own"
        ),
        pytest.param(
            "day", ["mon", "tue"] * 200, "sparse", "texts; named as a time, but 'mon' is not", id="words"
        ),
        pytest.param("hour", [i % 24 for i in range(400)], "sparse", "not dates: 0 to 23 are", id="hours"),
        pytest.param("timestamp", range(0, 4000, 10), "time", "not dates: 0 to 3990 are", id="relative"),
        pytest.param(
            "travel_time", [i % 377 for i in range(400)], "dense", "named as a time; not dates", id="long"
        ),
        pytest.param("visits_ms", range(400), "dense", "named as a quantity", id="quantity"),
        pytest.param("expiry", ["31/02/2026", "14/03/2026"] * 200, "sparse", "texts", id="no-such-day"),
        pytest.param("last_login", _SECONDS, "date", "seconds since 1970", id="other-name"),
        pytest.param("start", range(400, 0, -1), "ignored", "different in every row", id="other-numbers"),
        pytest.param("title", ["12 Monkeys", "3 Idiots"] * 200, "sparse", "texts", id="titles"),
        pytest.param("batch", ["12/13", "10/11"] * 200, "sparse", "texts", id="fractions"),
    ],
)
def test_the_reason_says_why_a_column_is_no_time(name: str, values: Any, use: str, reason: str) -> None:
    report = _report(
        pa.table({"click": [0, 1] * 200, "user_id": [i % 9 for i in range(400)], name: values}), name
    )
    assert report.use == use
    assert reason in report.reason


def test_a_time_that_does_not_divide_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _csv(tmp_path / "a.csv", "hour", [14102100] * 100)
    assert "while it is the same in all rows, the last ones" in _report(path, "hour").reason
    sizes = ["--embedding-dim", "4", "--over-layers", "4"]
    argv = ["--data", str(path), "--out", str(tmp_path / "m.pt"), *sizes]
    assert train_main([*argv, "--json"]) == 0
    assert capsys.readouterr().err == (
        "recsys-train: schema.time: column 'hour' is 2014-10-21 00:00:00 in all rows; held out are the last 10% of "
        "the rows as they lie\n"
    )


def test_the_finest_time_orders_the_rows() -> None:
    days = [f"{at:%Y%m%d}" for at in _MOMENTS]
    clock = [int(f"{at:%H%M}") for at in _MOMENTS]
    table = pa.table({"click": [0, 1] * 200, "user_id": [i % 9 for i in range(400)], "date": days})
    assert infer(table.append_column("time_ms", [[1000 * s for s in _SECONDS]])).schema.time == "time_ms"
    # A clock without a day orders nothing, although it differs more.
    assert infer(table.append_column("time", [clock])).schema.time == "date"
    assert infer(table.add_column(0, "time", [clock])).schema.time == "date"
