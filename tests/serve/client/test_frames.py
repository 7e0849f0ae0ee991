"""Frames as requests: the same rows as from arrays, in as many requests as the server's limit asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from serve.client.frames import check_alone, frame_requests, is_frame, joined
from serve.client.packing import Answer, build_request
from serve.wire import predict_pb2 as wire

METADATA = wire.ModelMetadata(
    dense=[
        wire.DenseSignature(name="dense_features", width=2, missing=True, columns=["price", "age"]),
        wire.DenseSignature(name="content", width=3),
    ],
    sparse=[
        wire.SparseSignature(name="user"),
        wire.SparseSignature(name="city", strings="xxh64"),
        wire.SparseSignature(name="tags", strings="xxh64", separator="|"),
        wire.SparseSignature(name="items"),
    ],
)
COLUMNS: dict[str, Any] = {
    "price": [1.5, None, 3.0, 4.0],
    "age": [30, 40, None, 50],
    "content": [[0.0, 1.0, 2.0]] * 4,
    "user": [7, None, 2**53 + 1, -4],
    "city": ["Bonn", "", None, "Köln"],
    "tags": ["a|b", "c", None, ""],
    "items": [[1, 2], [], None, [3]],
    "click": [1, 0, 0, 1],
}
_MISSING = float("nan")
EXPECTED = build_request(
    {
        "dense_features": [[1.5, 30], [_MISSING, 40], [3.0, _MISSING], [4.0, 50]],
        "content": [[0.0, 1.0, 2.0]] * 4,
    },
    {
        "user": [[7], [], [2**53 + 1], [-4]],
        "city": [["Bonn"], [], [], ["Köln"]],
        "tags": [["a", "b"], ["c"], [], []],
        "items": [[1, 2], [], [], [3]],
    },
)


def _pandas() -> pd.DataFrame:
    # Whole numbers with a missing one: a column of floats would have lost digits of one of them.
    return pd.DataFrame({**COLUMNS, "user": pd.array(COLUMNS["user"], dtype="Int64")})


@pytest.mark.parametrize("make", [lambda: pa.table(COLUMNS), _pandas])
def test_each_frame_gives_the_rows_of_the_lists(make: Any) -> None:
    assert is_frame(make())
    assert list(frame_requests(make(), METADATA)) == [EXPECTED]


def test_a_limit_splits_rows_over_requests_and_answers_are_joined() -> None:
    metadata = wire.ModelMetadata()
    metadata.CopyFrom(METADATA)
    metadata.limits.max_rows = 3
    requests = list(frame_requests(pa.table(COLUMNS), metadata, request_id="a"))
    assert [(request.num_rows, request.request_id) for request in requests] == [(3, "a"), (1, "a")]
    parts = [
        Answer({"score": np.array([1.0, 2.0])}, model="m", version="1"),
        Answer({"score": np.array([3.0])}, model="m", version="2"),
    ]
    whole = joined(parts)
    assert (whole["score"].tolist(), whole.model, whole.version) == ([1.0, 2.0, 3.0], "m", "1, 2")


def test_an_empty_frame_is_one_request_without_rows() -> None:
    (request,) = frame_requests(pa.table(COLUMNS).slice(0, 0), METADATA)
    assert request.num_rows == 0


@pytest.mark.parametrize(("name", "strings"), [("items", ""), ("tags", "xxh64")])
def test_crossed_features_have_one_value_before_anything_is_sent(name: str, strings: str) -> None:
    values: list[Any] = [[1], [], [2], [3, 4]] if not strings else ["a", None, "", "b|c"]
    table = pa.table({name: values})
    crossed = wire.SparseSignature(name=name, strings=strings, separator="|" if strings else "", max_ids=1)
    metadata = wire.ModelMetadata(sparse=[crossed], limits=wire.RequestLimits(max_rows=3))
    requests = frame_requests(table, metadata)
    assert next(requests).num_rows == 3
    expected = f"data, row 3: column {name!r}: got 2 values, expected at most 1: the model crosses the column"
    with pytest.raises(ValueError, match=expected):
        next(requests)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"price": None}, r"without the columns \['price'\], expected one for each input: \['price', 'age'"),
        ({"user": ["x", "1", "2", "3"]}, r"data, row 0: column 'user': got 'x', expected"),
        ({"user": [1.5, 1.0, 2.0, 3.0]}, r"data, row 0: column 'user': got '1\.5', expected"),
        ({"content": [[1.0]] * 4}, None),
    ],
)
def test_wrong_columns_are_named(changes: dict[str, Any], message: str | None) -> None:
    columns = {name: values for name, values in {**COLUMNS, **changes}.items() if values is not None}
    if message is None:  # the server names the width that it expects
        (request,) = frame_requests(pa.table(columns), METADATA)
        assert len(request.dense[1].values) == 4 * 4
        return
    with pytest.raises(ValueError, match=message):
        list(frame_requests(pa.table(columns), METADATA))


def test_other_inputs_and_weighted_ones_do_not_go_with_a_frame() -> None:
    with pytest.raises(ValueError, match="got one with a frame"):
        check_alone(None, {"items": [[1.0]]}, None)
    weighted = wire.ModelMetadata(sparse=[wire.SparseSignature(name="user", weighted=True)])
    with pytest.raises(ValueError, match="weighted input 'user'"):
        list(frame_requests(pa.table(COLUMNS), weighted))
    with pytest.raises(ValueError, match="expected a path, or a frame"):
        list(frame_requests(3, METADATA))
