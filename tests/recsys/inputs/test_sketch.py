"""Sketches of training data: what they hold, what differs from them, and what is refused."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import numpy as np
import pytest

from recsys.base.hashing import hash_text
from recsys.errors import ManifestError
from recsys.inputs.example_rows import ExampleRows
from recsys.inputs.sketch import (
    NUM_LENGTH_BINS,
    DataSketch,
    length_bins,
    sketch_of,
    stability_index,
)


def rows_of(seed: int, num_rows: int, shift: float = 0.0) -> ExampleRows:
    random = np.random.default_rng(seed)
    age: list[float | None] = [float(np.float32(x + shift)) for x in random.normal(size=num_rows)]
    age[::4] = [None] * len(age[::4])
    return ExampleRows(
        num_rows=num_rows,
        dense={"age": age, "is_new": random.integers(0, 2, num_rows).astype(float).tolist()},
        sparse={
            "user": [[int(u)] for u in random.integers(0, 10**9, num_rows)],
            "genres": [
                [str(g) for g in random.integers(0, 5, size=n)] for n in random.integers(0, 4, size=num_rows)
            ],
        },
    )


def test_a_sketch_has_shares_of_bins_lengths_and_frequent_values() -> None:
    sketch = sketch_of(rows_of(0, 4000))
    age, is_new = sketch.dense["age"], sketch.dense["is_new"]
    assert age.missing == 0.25
    assert age.shares == pytest.approx([0.1] * 10, abs=0.01)
    # Two values are two bins.
    assert is_new.edges == (1.0,)
    assert is_new.shares == pytest.approx([0.5, 0.5], abs=0.03)
    # No ID of a user is frequent.
    assert sketch.sparse["user"].values == ()
    assert sketch.sparse["user"].all_shares == (1.0,)
    genres = sketch.sparse["genres"]
    assert genres.values == tuple(sorted(hash_text(str(g)) for g in range(5)))
    assert genres.shares == pytest.approx([0.2] * 5, abs=0.03)
    assert genres.lengths[:4] == pytest.approx([0.25] * 4, abs=0.03)


def test_counts_of_the_sketched_rows_give_its_shares() -> None:
    rows = rows_of(1, 4000)
    sketch = sketch_of(rows)
    age = np.asarray([math.nan if x is None else x for x in rows.dense["age"]], dtype=np.float32)
    counts = sketch.dense["age"].count(age)
    assert (counts / counts.sum()).tolist() == pytest.approx(sketch.dense["age"].shares, abs=1e-6)
    genres = np.asarray([hash_text(str(g)) for bag in rows.sparse["genres"] for g in bag])
    counts = sketch.sparse["genres"].count(genres)
    assert (counts / counts.sum()).tolist() == pytest.approx(sketch.sparse["genres"].all_shares, abs=1e-5)
    assert sketch.sparse["user"].count(np.asarray([5, 6])).tolist() == [2]


def test_the_stability_index_is_small_for_like_data_and_large_for_others() -> None:
    sketch = sketch_of(rows_of(2, 10_000)).dense["age"]

    def index(shift: float) -> float:
        column = rows_of(3, 5000, shift).dense["age"]
        numbers = np.asarray([math.nan if x is None else x for x in column])
        return stability_index(sketch.shares, sketch.count(numbers))

    assert index(0.0) < 0.02 < 0.25 < index(1.0)


def test_the_stability_index_is_its_formula() -> None:
    assert stability_index((0.5, 0.5), np.asarray([10, 10])) == 0
    expected = 0.25 * math.log(0.75 / 0.5) - 0.25 * math.log(0.25 / 0.5)
    assert stability_index((0.5, 0.5), np.asarray([30, 10])) == pytest.approx(expected)
    # Empty bins count as 0.0001.
    assert math.isfinite(stability_index((1.0, 0.0), np.asarray([0, 7])))


def test_bins_of_lengths() -> None:
    lengths = np.asarray([0, 1, 2, 3, 4, 5, 8, 9, 1 << 14, (1 << 14) + 1, 1 << 30])
    assert length_bins(lengths).tolist() == [0, 1, 2, 3, 3, 4, 4, 5, 15, 16, 16]
    assert NUM_LENGTH_BINS == 17


def test_columns_without_numbers_and_features_without_values_have_sketches() -> None:
    rows = ExampleRows(num_rows=2, dense={"x": [None, None]}, sparse={"a": [[], []]})
    sketch = sketch_of(rows)
    assert sketch.dense["x"].missing == 1.0
    assert sketch.sparse["a"].lengths[0] == 1.0
    assert DataSketch.from_json(json.loads(json.dumps(sketch.to_json()))) == sketch


def test_json_gives_the_same_sketch_in_few_bytes() -> None:
    sketch = sketch_of(rows_of(4, 4000))
    text = json.dumps(sketch.to_json())
    assert DataSketch.from_json(json.loads(text)) == sketch
    assert len(text) < 2000


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("num_rows",), 0, "data_sketch.num_rows: got '0'"),
        (("dense", "age", "edges"), [2.0, 1.0], "age.edges: got '(2.0, 1.0)', expected some ascending"),
        (("dense", "age", "edges"), [math.nan], "age.edges"),
        (("dense", "age", "shares"), [0.1], "age.shares: got '[0.1]', expected 10 finite numbers"),
        (("dense", "age", "shares"), [2.0] * 10, "expected numbers from 0 to 1"),
        (("dense", "age", "missing"), "much", "age.missing: got 'much'"),
        (
            ("sparse", "genres", "values"),
            [2, 1],
            "genres.values: got '[2, 1]', expected some ascending int64",
        ),
        (("sparse", "genres", "values"), [1 << 63], "genres.values"),
        (("sparse", "genres", "lengths"), [1.0], "genres.lengths: got '[1.0]', expected 17"),
        (("sparse", "genres"), 3, "genres.values: missing"),
        (("sparse",), [], "data_sketch.sparse: got '[]', expected an object"),
        (("dense",), {str(i): {} for i in range(3000)}, "expected at most 2048 inputs"),
    ],
)
def test_a_damaged_sketch_is_refused(path: tuple[str, ...], value: Any, text: str) -> None:
    data = copy.deepcopy(sketch_of(rows_of(5, 400)).to_json())
    inner: Any = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(ManifestError) as raised:
        DataSketch.from_json(data)
    assert text in str(raised.value)
