"""Ages, the seconds between two times of a row: read from every form of times, trained, named where they are wrong."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from export.pipeline import export_model
from recsys.artifact.load import load_artifact
from recsys.data.lines import DataError
from recsys.data.tables.dataset import table_dataset
from recsys.errors import SchemaError
from recsys.inputs.schema import Schema
from recsys.train.fitting import fit
from tests.recsys.data.blocks import all_of

_NUM_ROWS = 200
_AGES = np.random.default_rng(0).integers(60, 30 * 86_400, _NUM_ROWS)
_EVENTS = [datetime(2026, 1, 30) + i * timedelta(minutes=7) for i in range(_NUM_ROWS)]
_TABLE = {"name": "items", "rows": 20, "features": ["item"]}
_AGE = {"name": "item_age", "since": "published", "missing": 0, "log1p": True}


def _schema(age: dict[str, Any] | None = None, **changes: Any) -> Schema:
    data = {
        "time": "ts",
        "labels": [{"name": "click"}],
        "dense": [{**_AGE, **(age or {})}],
        "tables": [_TABLE],
    }
    return Schema.from_json({name: value for name, value in (data | changes).items() if value is not None})


def _table(form: Any = pa.array) -> pa.Table:
    published = [event - timedelta(seconds=int(age)) for event, age in zip(_EVENTS, _AGES, strict=True)]
    return pa.table(
        {
            "click": (_AGES < 15 * 86_400).astype(int),
            "item": [i % 20 for i in range(_NUM_ROWS)],
            "ts": form(_EVENTS),
            "published": form(published),
        }
    )


def _seconds(times: list[datetime]) -> list[float]:
    return [(time - datetime(1970, 1, 1)).total_seconds() for time in times]


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(lambda times: pa.array(times, pa.timestamp("ms")), id="timestamps"),
        pytest.param(lambda times: [time.isoformat() + "Z" for time in times], id="texts"),
        pytest.param(_seconds, id="seconds"),
        pytest.param(lambda times: [int(1000 * s) for s in _seconds(times)], id="milliseconds"),
        pytest.param(lambda times: [time.strftime("%d/%m/%Y %H:%M:%S") for time in times], id="format"),
    ],
)
def test_an_age_is_the_seconds_between_two_times(form: Any, request: pytest.FixtureRequest) -> None:
    of_form = "%d/%m/%Y %H:%M:%S" if "format" in request.node.callspec.id else ""
    age = {"until": "ts", **({"format": of_form} if of_form else {})}
    dataset = table_dataset(_table(form), _schema(age, time=None))
    (block,) = dataset.train()
    np.testing.assert_array_equal(all_of(block).dense[:, 0], _AGES[: len(block)].astype(np.float32))


def test_the_schemas_time_is_the_rows_own_unless_another_is_named() -> None:
    assert _schema().dense[0].columns == ("published", "ts")
    assert _schema({"until": "clicked_at"}).dense[0].columns == ("published", "clicked_at")
    schema = _schema()
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    assert schema.input_columns() == ["published", "ts", "item"]


def test_a_model_of_ages_answers_the_number_of_seconds(tmp_path: Path) -> None:
    schema = _schema({"quantiles": 4})
    model = fit(_table(), schema=schema, epochs=1, embedding_dim=4, batch_size=32).model
    assert len(model.schema.dense[0].buckets) == 3
    export_model(model.module, tmp_path / "a")
    artifact = load_artifact(tmp_path / "a")
    assert artifact.signature.dense[0].columns == ("item_age",)
    # The inputs as a server makes them of a request: the age, one ID a row.
    ages = torch.from_numpy(_AGES.astype(np.float32)).unsqueeze(1)
    items = torch.tensor([i % 20 for i in range(_NUM_ROWS)])
    found = artifact.forward(ages, torch.ones(_NUM_ROWS, dtype=torch.int64), items)["score"].numpy()
    np.testing.assert_allclose(found, model.predict(_table())["score"], atol=2e-2)


def test_a_missing_time_is_a_missing_age() -> None:
    table = _table()
    published = table.column("published").to_pylist()
    published[3] = None
    gap = table.set_column(3, "published", pa.array(published))
    (block,) = table_dataset(gap, _schema()).train()
    assert np.flatnonzero(np.isnan(all_of(block).dense[:, 0])).tolist() == [3]
    plain = _schema(dense=[{"name": "age", "since": "published"}])
    (block,) = table_dataset(gap, plain).train()
    with pytest.raises(DataError, match="row 3: column 'age': got a missing value, expected a number"):
        all_of(block)


@pytest.mark.parametrize(
    ("age", "changes", "text"),
    [
        ({}, {"time": None}, r"dense\[0\].until: got 'none', expected the column of the row's own time"),
        ({"size": 3}, {}, r"dense\[0\].since: .* expected no size and no decimal"),
        ({"since": ""}, {}, r"dense\[0\].since"),
    ],
)
def test_wrong_entries(age: dict[str, Any], changes: dict[str, Any], text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        _schema(age, **changes)


def test_fields_of_ages_need_since() -> None:
    with pytest.raises(SchemaError, match=r"dense\[0\].until: got 'ts', expected it with since"):
        _schema(dense=[{"name": "age", "until": "ts"}])


def test_times_of_other_types_are_named() -> None:
    lists = _table(lambda times: [[time] for time in times])
    with pytest.raises(DataError, match=r"column 'published': got list.* expected timestamps, dates"):
        table_dataset(lists, _schema())
