"""Columns that differ in every row are no features; IDs of users and items are, also in small tables."""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from recsys.data.tables.infer import infer
from recsys.train.commands.train import main as train_main

_RNG = np.random.default_rng(0)
_N = 3_000
_UUIDS = [str(uuid.UUID(int=random.Random(i).getrandbits(128))) for i in range(_N)]


def _found(name: str, values: Any, rows: int = _N) -> tuple[str, str]:
    """Return a column's use and the reason, beside a label and a feature."""
    data = pa.table(
        {"click": [i % 2 for i in range(rows)], "site": [i % 7 for i in range(rows)], name: values}
    )
    (column,) = [column for column in infer(data).columns if column.name == name]
    return column.use, column.reason


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        pytest.param("__index_level_0__", _RNG.permutation(_N), "an index that pandas wrote", id="parquet"),
        pytest.param("__index_level_0__", _RNG.integers(0, _N, _N), "an index that", id="sampled-index"),
        pytest.param("Unnamed: 0", range(_N), "an index that pandas wrote", id="csv"),
        pytest.param("index", range(_N), "an index that pandas wrote", id="reset-index"),
        pytest.param("level_0", range(_N), "an index that pandas wrote", id="level"),
        pytest.param(
            "auction_uuid", _UUIDS, "named as the ID of an event: different in every row", id="uuid"
        ),
        pytest.param("key", _UUIDS, "UUIDs, different in every row", id="key"),
        pytest.param("key", [f"{{{u.upper()}}}" for u in _UUIDS], "UUIDs, different", id="braces"),
        pytest.param("key", [u.replace("-", "") for u in _UUIDS], "UUIDs, different", id="hex"),
        pytest.param("orderNo", [f"A-{7 * i}" for i in range(_N)], "ID of an event: different", id="orders"),
        pytest.param("session_id", [i // 4 * 991 for i in range(_N)], "event: 4.0 rows each", id="sessions"),
        pytest.param("requestId", [f"r{i // 10}" for i in range(_N)], "event: 10.0 rows each", id="requests"),
        pytest.param("comment", [f"so good {i}!" for i in range(_N)], "different in every row", id="texts"),
        pytest.param("serial", [10**12 + 37 * i for i in range(_N)], "different in every row", id="serials"),
        pytest.param(
            "token", [u if i % 3 else None for i, u in enumerate(_UUIDS)], "UUIDs, different", id="missing"
        ),
    ],
)
def test_what_differs_in_every_row_is_ignored(name: str, values: Any, reason: str) -> None:
    use, found = _found(name, values)
    assert use == "ignored"
    assert reason in found


@pytest.mark.parametrize(
    ("name", "values", "use"),
    [
        pytest.param("user_id", _RNG.permutation(10**6)[:_N], "sparse", id="few-of-many-users"),
        pytest.param("userUuid", _UUIDS, "sparse", id="users-uuids"),
        pytest.param(
            "device_ip", [f"{i * 2654435761 % 2**32:08x}" for i in range(_N)], "sparse", id="addresses"
        ),
        pytest.param("verified", ["True", "false"] * (_N // 2), "sparse", id="true-and-false"),
        pytest.param("asin", [f"B{i:09}" for i in range(_N)], "sparse", id="asins"),
        pytest.param("session", [i % 20 for i in range(_N)], "sparse", id="kinds-of-sessions"),
        pytest.param("event_id", [i % 5 for i in range(_N)], "sparse", id="kinds-of-events"),
        pytest.param("index", [i % 2 for i in range(_N)], "sparse", id="two-values"),
        pytest.param("path", [f"a{i % 1500}" for i in range(_N)], "sparse", id="each-twice"),
        pytest.param(
            "tags", [f"t{i % 50}|t{i // 50}" + "|x" * (i % 2) for i in range(_N)], "sparse", id="lists"
        ),
        pytest.param("total_paid", _RNG.permutation(10**6)[:_N], "dense", id="quantity"),
        pytest.param("x", _RNG.random(_N), "dense", id="fractions"),
    ],
)
def test_what_comes_again_elsewhere_is_kept(name: str, values: Any, use: str) -> None:
    assert _found(name, values)[0] == use


def test_sentences_are_ignored_though_some_come_again() -> None:
    many = _N * 3 // 4
    reviews = [f"I have had this one for {i % many} days now." for i in range(_N)]
    assert _found("body", reviews) == ("ignored", "texts in sentences, of which 75% are different")
    titles = [f"The Return of the King, part {i % 20}" for i in range(_N)]
    assert _found("title", titles)[0] == "sparse"


def test_users_that_never_come_twice_in_many_rows_are_ignored() -> None:
    assert _found("user_id", range(10_000), 10_000) == ("ignored", "different in every row")
    assert _found("user_id", range(9_999), 9_999)[0] == "sparse"
    assert _found("name", [f"name {i}" for i in range(50)], 50) == ("ignored", "different in every row")
    assert _found("name", [f"name {i}" for i in range(49)], 49)[0] == "sparse"
    assert _found("key", _UUIDS[:10], 10) == ("ignored", "UUIDs, different in every row")


def test_what_is_left_trains(tmp_path: Path) -> None:
    data = pa.table(
        {"click": _RNG.integers(0, 2, 200), "user_id": range(200), "__index_level_0__": range(200)}
    )
    parquet.write_table(data, tmp_path / "a.parquet")
    argv = ["--data", str(tmp_path / "a.parquet"), "--out", str(tmp_path / "m.pt"), "--embedding-dim", "4"]
    assert train_main([*argv, "--over-layers", "4"]) == 0
