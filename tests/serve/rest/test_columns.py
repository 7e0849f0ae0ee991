"""Dense inputs by the names of their columns: in the metadata, in plain JSON and in its schema."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from recsys.inputs.signature import DenseInput, Signature
from serve.config.models import BatchLimits
from serve.engine.interface import ModelInfo
from serve.errors import RequestError
from serve.rest.pages.schemas import plain_request
from serve.rest.plain_json import read_plain
from serve.rpc.metadata import model_metadata
from tests.support.serve.models import SIGNATURE

jsonschema = pytest.importorskip("jsonschema")

_LIMITS = BatchLimits(max_request_rows=8)
_NAMED = Signature(
    dense=(DenseInput(name="d", width=3, columns=("price", "age", "rate")),),
    sparse=(),
    outputs=SIGNATURE.outputs,
)
_MISSING = replace(_NAMED, dense=(replace(_NAMED.dense[0], missing=True),))
_UNNAMED = replace(_NAMED, dense=(replace(_NAMED.dense[0], columns=()),))
_ROWS = [{"age": 2, "price": 1.5, "rate": 3}, {"rate": 0, "price": -1, "age": 0.25}]


def _read(signature: Signature, rows: Any) -> list[list[float]]:
    request = read_plain({"dense": {"d": rows}}, signature, _LIMITS)
    assert request.num_rows == len(rows)
    numbers: list[list[float]] = np.frombuffer(request.dense[0].values, "<f4").reshape(-1, 3).tolist()
    return numbers


def _fits(signature: Signature, rows: Any) -> bool:
    validator = jsonschema.Draft202012Validator(plain_request(signature, _LIMITS))
    return bool(validator.is_valid({"dense": {"d": rows}}))


@pytest.mark.parametrize("signature", [_NAMED, _MISSING])
def test_rows_by_column(signature: Signature) -> None:
    assert _read(signature, _ROWS) == [[1.5, 2, 3], [-1, 0.25, 0]]
    assert _read(signature, [[1.5, 2, 3], [-1, 0.25, 0]]) == _read(signature, _ROWS)
    assert _fits(signature, _ROWS)


def test_a_column_that_is_left_out_is_missing() -> None:
    numbers = _read(_MISSING, [{"age": 2}, {}, {"rate": None, "age": 4}])
    nan = np.nan
    np.testing.assert_array_equal(numbers, [[nan, 2, nan], [nan, nan, nan], [nan, 4, nan]])
    assert _fits(_MISSING, [{"age": 2}, {}, {"rate": None, "age": 4}])


def test_true_is_one_and_false_is_zero() -> None:
    rows = [{"age": True, "price": False, "rate": 3}, {"age": 0, "price": 1, "rate": True}]
    assert _read(_NAMED, rows) == [[0, 1, 3], [1, 0, 1]]
    assert _fits(_NAMED, rows)
    assert _read(_NAMED, [[True, 0.5, False]]) == [[1, 0.5, 0]]


@pytest.mark.parametrize(
    ("signature", "rows", "text"),
    [
        pytest.param(
            _NAMED,
            [_ROWS[0], {"age": 2, "rate": 1}],
            r"dense\['d'\]\[1\]: missing 'price', expected all of 'price', 'age', 'rate'",
            id="left-out",
        ),
        pytest.param(
            _MISSING, [{"Age": 2}], r"dense\['d'\]\[0\]: got an unknown column 'Age', expected", id="unknown"
        ),
        pytest.param(_NAMED, [_ROWS[0], [1, 2, 3]], r"dense\['d'\]\[1\]: got no object", id="list"),
        pytest.param(
            _UNNAMED, _ROWS, r"expected lists of 3 numbers: the model does not name its columns", id="unnamed"
        ),
        pytest.param(
            _MISSING,
            [{"age": "-"}],
            r"dense\['d'\]: got a text, expected numbers alone; send null for a missing number",
            id="text",
        ),
        pytest.param(
            _NAMED,
            [{"price": 1, "age": "2", "rate": 1}],
            r"dense\['d'\]: got a text, expected numbers alone$",
            id="text-where-none-may-be-missing",
        ),
    ],
)
def test_wrong_rows_by_column(signature: Signature, rows: Any, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        _read(signature, rows)
    # The schema of an array does not say that all rows have the same form.
    assert not _fits(signature, rows) or rows[-1] == [1, 2, 3]


def test_the_metadata_names_the_columns() -> None:
    info = ModelInfo(name="m", version="1", target="cpu", digest="d", table_bytes=0)
    named, unnamed = (
        model_metadata(signature, info, limits=_LIMITS, max_message_bytes=1)
        for signature in (_MISSING, _UNNAMED)
    )
    assert list(named.dense[0].columns) == ["price", "age", "rate"]
    assert named.dense[0].missing
    assert not unnamed.dense[0].columns
