"""Whatever is inferred of columns of any kind can be trained, from a frame, from Parquet and from CSV."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from recsys.data.tables.dataset import table_dataset
from recsys.data.tables.infer import infer
from recsys.data.tables.schema_file import read_schema, to_toml
from recsys.train.commands.train import main as train_main
from recsys.train.config import ModelConfig, TrainConfig
from tests.support.training import train

_N = 300
_TIMES = ("ts", "hour", "date", "time")


def _columns() -> dict[str, pa.Array]:
    rng = np.random.default_rng(0)
    at = [datetime(2026, 1, 1) + timedelta(minutes=37 * i) for i in range(_N)]
    seconds = [int((moment - datetime(1970, 1, 1)).total_seconds()) for moment in at]
    few = [f"x{i % 5}" for i in range(_N)]
    columns = {
        "label": pa.array(rng.integers(0, 2, _N)).cast(pa.bool_()),
        "user": rng.integers(0, 50, _N),
        "price": rng.lognormal(size=_N),
        "gaps": [None if i % 7 == 0 else i % 90 for i in range(_N)],
        "ts": [0 if i == 3 else second for i, second in enumerate(seconds)],
        "hour": [int(f"{moment:%y%m%d%H}") for moment in at],
        "date": [moment.date() for moment in at],
        "seen": [f"{moment:%d/%m/%Y %H:%M}" for moment in at],
        "login_ts": [second * 1000 if i % 5 else None for i, second in enumerate(seconds)],
        "zoned": pa.array(at, pa.timestamp("ns", "UTC")),
        "fractions_of_epoch_s": [second + 0.25 for second in seconds],
        "birth_date": [date(1950 + i % 60, 1 + i % 12, 3) for i in range(_N)],
        "time": [time(1, i % 60) for i in range(_N)],
        "stay_time": rng.integers(0, 5_000, _N),
        "session_day": [("mon", "tue")[i % 2] for i in range(_N)],
        "created_at": [("soon", f"{i}")[i % 2] for i in range(_N)],
        "beyond": pa.array([2**63 + i % 9 for i in range(_N)], pa.uint64()),
        "decimals": [Decimal(i % 9) / 4 for i in range(_N)],
        "half": (np.arange(_N) % 7).astype(np.float16),
        "infinite": [float("inf") if i % 11 == 0 else i / 7 for i in range(_N)],
        "nothing": pa.nulls(_N),
        "large": pa.array(few, pa.large_string()),
        "category": pa.array(few).dictionary_encode(),
        "lists": [[i % 5, i % 3][: i % 3] for i in range(_N)],
        "lists_of_texts": [["a", None] if i % 2 else None for i in range(_N)],
        "embedding": [[1.5, 2.5]] * _N,
        "tags": [f"[{i % 4}, {i % 3}]" for i in range(_N)],
        "amount": ["n/a" if i % 9 == 0 else f"$1,{i % 90 + 100}.5" for i in range(_N)],
        "struct": [{"a": 1}] * _N,
        "purchase": rng.integers(0, 2, _N),
        "id": range(_N),
        **{name: rng.integers(0, 9, _N) for name in ("cpu", "modules", "items", "training", "forward", "to")},
        "importance": rng.random(_N),
    }
    return {
        name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()
    }


def _trains(data: pa.Table | Path) -> None:
    dataset = table_dataset(data, infer(data).schema)
    model = ModelConfig(embedding_dim=2, dense_layers=(2,), over_layers=(2,))
    train(dataset, model, TrainConfig(batch_size=64))


@pytest.mark.parametrize("num_times", range(len(_TIMES) + 1))
def test_frames_train(num_times: int) -> None:
    """Each column that may be the time is it once."""
    _trains(pa.table(_columns()).drop_columns(list(_TIMES[:num_times])))


def test_files_train(tmp_path: Path) -> None:
    data = pa.table(_columns())
    parquet.write_table(data, tmp_path / "a.parquet")
    _trains(tmp_path / "a.parquet")
    flat = pa.table(
        {
            field.name: data[field.name].cast(pa.string())
            for field in data.schema
            if not pa.types.is_nested(field.type)
        }
    )
    arrow_csv.write_csv(flat, tmp_path / "a.csv")
    _trains(tmp_path / "a.csv")
    assert (
        train_main(["--data", str(tmp_path / "a.csv"), "--out", str(tmp_path / "m.pt"), "--epochs", "1"]) == 0
    )


def test_the_schema_survives_its_file(tmp_path: Path) -> None:
    schema = infer(pa.table(_columns())).schema
    (tmp_path / "schema.toml").write_text(to_toml(schema), encoding="utf-8")
    assert read_schema(tmp_path / "schema.toml") == schema
